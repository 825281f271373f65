"""The NumPy mirrors of the parameter structs have the compiler's layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from kernels.backend import Launch, Module, Operand
from kernels.host_backend import HostBackend
from kernels.params import STRUCTS, element_strides
from tests.kernels.support import assert_no_faults


def layout_source(name: str, dtype: np.dtype[Any]) -> str:
    """A kernel that writes sizeof the struct, then the offset of every field that the mirror knows."""
    fields = "".join(f"    at[{i}] = offsetof({name}, {field});\n" for i, field in enumerate(dtype.names or (), 1))
    return (
        '#include <stddef.h>\n#include "params.cuh"\n'
        'extern "C" __global__ void layout(unsigned long long* at)\n{\n'
        f"    at[0] = sizeof({name});\n{fields}}}\n"
    )


@pytest.mark.parametrize("name", STRUCTS)
def test_every_field_lies_where_the_compiler_puts_it(cpu: HostBackend, tmp_path: Path, name: str) -> None:
    dtype = STRUCTS[name]
    source = tmp_path / "layout.cu"
    source.write_text(layout_source(name, dtype))
    offsets = np.zeros(1 + len(dtype.names or ()), np.uint64)
    cpu.launch(
        Launch(
            module=Module(source=source, entries=("layout",)),
            entry="layout",
            grid=(1, 1, 1),
            block=1,
            shared_bytes=0,
            params=np.array(offsets.ctypes.data, np.uint64),
            operands=(Operand(name="offsets", array=offsets, writable=True, initialised=False),),
        )
    )
    assert_no_faults(cpu)
    mirrored = [dtype.itemsize, *((dtype.fields or {})[field][1] for field in dtype.names or ())]
    assert_array_equal(offsets, mirrored)


def test_size_one_axes_have_stride_zero_and_views_keep_theirs() -> None:
    array = np.zeros((1, 6, 4), np.float32)
    assert element_strides(array) == (0, 4, 1)
    assert element_strides(array[:, ::-2, ::2]) == (0, -8, 2)
