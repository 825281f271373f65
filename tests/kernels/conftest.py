"""Backends shared by the kernel tests: compiled variants are then loaded once a session."""

import pytest

from kernels.cpu_backend import Build
from kernels.host_backend import HostBackend


@pytest.fixture(scope="session")
def cpu() -> HostBackend:
    return HostBackend()


@pytest.fixture(scope="session")
def checked_cpu() -> HostBackend:
    return HostBackend(build=Build.CHECKED)
