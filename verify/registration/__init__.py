"""How users declare their kernels: decorated functions and CUDA sources with a launch description."""

from verify.registration.cuda_source import CudaSource, Launch
from verify.registration.declaration import Declaration, declaration_of, register, renamed
from verify.registration.signature import GRADIENTS, argument_names

__all__ = [
    "GRADIENTS",
    "CudaSource",
    "Declaration",
    "Launch",
    "argument_names",
    "declaration_of",
    "register",
    "renamed",
]
