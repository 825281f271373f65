"""Runs unchanged CUDA C++ kernels on the CPU: a fiber for each thread, exact tensor-core arithmetic, checked memory.

Public names only; each module says what it is responsible for.
"""

from kernels.cpu_backend.cache import CompileError, cache_dir
from kernels.cpu_backend.faults import SHARED_MEMORY, Fault, FaultKind, LaunchReport
from kernels.cpu_backend.memory import Buffer, guarded_array
from kernels.cpu_backend.module import CpuModule, compile_module
from kernels.cpu_backend.options import FIFO, REVERSED, Build, MmaModel, Policy, Schedule, random
from kernels.cpu_backend.toolchain import ToolchainError

__all__ = [
    "FIFO",
    "REVERSED",
    "SHARED_MEMORY",
    "Buffer",
    "Build",
    "CompileError",
    "CpuModule",
    "Fault",
    "FaultKind",
    "LaunchReport",
    "MmaModel",
    "Policy",
    "Schedule",
    "ToolchainError",
    "cache_dir",
    "compile_module",
    "guarded_array",
    "random",
]
