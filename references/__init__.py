"""Mathematics of attention in fp64: what every kernel's numbers are compared with. Knows no kernel and no test."""
