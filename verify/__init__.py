"""Judge attention kernels against an fp64 reference and bounds derived from their declared arithmetic."""

__version__ = "0.1.0"
