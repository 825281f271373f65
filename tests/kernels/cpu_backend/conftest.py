"""Skips this folder where kernels cannot be compiled."""

import pytest

from kernels.cpu_backend import ToolchainError
from kernels.cpu_backend.toolchain import cuda_include_dir, find_compiler, machine_flags


@pytest.fixture(scope="session", autouse=True)
def _toolchain() -> None:
    try:
        machine_flags(), find_compiler(), cuda_include_dir()
    except ToolchainError as error:
        pytest.skip(str(error))
