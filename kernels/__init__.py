"""CUDA attention kernels, what they declare about themselves, and how they are compiled and launched on a GPU or a CPU.

Knows neither the references nor the verification.
"""
