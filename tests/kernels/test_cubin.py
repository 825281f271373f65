"""NVRTC compiles every entry point without a GPU, and the tiled kernels keep everything in registers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels.backend import Module
from kernels.cubin import NvrtcError, compile_cubin, parse_usage
from kernels.kernel import CUDA_DIR, STORAGE_TYPES, Kernel
from kernels.launch import module_of
from kernels.registry import KERNELS, TEXTBOOK, TILED
from kernels.tiles import default_tile

pytest.importorskip("cupy", reason="NVRTC is reached through CuPy")

DIRECTIONS = ("forward", "backward")


def assert_compiles_without_spills(kernel: Kernel, dtype: str, bucket: int, direction: str, arch: str) -> None:
    module = module_of(kernel, dtype, bucket, default_tile(kernel, direction, bucket, arch))
    cubin = compile_cubin(module, arch)
    assert set(cubin.usage) == set(kernel.entries)
    spilling = {name: usage for name, usage in cubin.usage.items() if usage.spill_store_bytes or usage.spill_load_bytes}
    assert not spilling
    assert cubin.path.read_bytes()[:4] == b"\x7fELF"


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("dtype", STORAGE_TYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_every_storage_type_compiles_without_spills(name: str, dtype: str, arch: str) -> None:
    kernel = KERNELS[name]
    assert_compiles_without_spills(kernel, dtype, 0 if kernel is TEXTBOOK else 64, "forward", arch)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("bucket", [bucket for bucket in TILED.forward.tiles if bucket != 64])
def test_every_head_dim_bucket_compiles_without_spills(bucket: int, direction: str) -> None:
    assert_compiles_without_spills(TILED, "fp16", bucket, direction, "sm_80")


@pytest.mark.parametrize("name", KERNELS)
def test_the_oldest_architecture_compiles(name: str) -> None:
    kernel = KERNELS[name]
    assert_compiles_without_spills(kernel, "fp16", 0 if kernel is TEXTBOOK else 64, "backward", "sm_75")


def test_dropout_mask_compiles() -> None:
    module = Module(source=CUDA_DIR / "dropout_mask.cu", entries=("dropout_mask",), defines={"THREADS": 128})
    assert set(compile_cubin(module, "sm_80").usage) == {"dropout_mask"}


def test_a_source_that_does_not_compile_is_refused_with_the_diagnostic(tmp_path: Path) -> None:
    source = tmp_path / "broken.cu"
    source.write_text('extern "C" __global__ void broken() { undeclared = 1; }\n')
    with pytest.raises(NvrtcError, match="undeclared"):
        compile_cubin(Module(source=source, entries=("broken",)), "sm_80")


def test_spills_are_read_from_the_log() -> None:
    """Without this, a change of ptxas' wording would turn the gate on spills into a gate on nothing."""
    log = (
        "ptxas info    : Compiling entry function 'first' for 'sm_80'\n"
        "    8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
        "ptxas info    : Used 40 registers, 32 bytes smem, 400 bytes cmem[0]\n"
        "ptxas info    : Compiling entry function 'second' for 'sm_80'\n"
        "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 16 registers, 352 bytes cmem[0]\n"
    )
    usage = parse_usage(log)
    assert (usage["first"].registers, usage["first"].static_shared_bytes, usage["first"].stack_bytes) == (40, 32, 8)
    assert (usage["first"].spill_store_bytes, usage["first"].spill_load_bytes) == (12, 16)
    assert (usage["second"].registers, usage["second"].spill_store_bytes) == (16, 0)


def test_a_real_log_reports_registers_of_every_entry() -> None:
    cubin = compile_cubin(module_of(TEXTBOOK, "fp32", 0, default_tile(TEXTBOOK, "forward", 0, "sm_80")), "sm_80")
    assert min(usage.registers for usage in cubin.usage.values()) > 0
