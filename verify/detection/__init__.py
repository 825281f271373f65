"""Known faults, impostors and mutants, and how many of them the checks catch."""
