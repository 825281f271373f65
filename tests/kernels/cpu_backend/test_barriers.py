"""Barriers of the block: votes, named barriers, divergence, deadlock."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernels.cpu_backend import SHARED_MEMORY, FaultKind, guarded_array
from tests.kernels.cpu_backend.launching import SCHEDULES, run_kernel, write_kernel

VOTES = """
int t = threadIdx.x, p = t % 3 == 0;
out[t * 3] = __syncthreads_count(p);
out[t * 3 + 1] = __syncthreads_or(t == 77);
out[t * 3 + 2] = __syncthreads_and(t < 99);
"""

# Warps 0, 1 fill a buffer for warps 2, 3 and are told when it may be filled again. Nobody else waits.
PRODUCER_CONSUMER = """
DYN_SMEM(raw);
float* shared = (float*)raw;
int t = threadIdx.x;
for (int round = 0; round < 4; ++round) {
    if (t < 64) {
        if (round > 0)
            named_barrier_sync(2, 128);
        shared[t] = t + round;
        named_barrier_arrive(1, 128);
    } else {
        named_barrier_sync(1, 128);
        float value = shared[127 - t];
        if (round < 3)
            named_barrier_arrive(2, 128);
        out[round * 64 + t - 64] = value;
    }
}
"""


def test_block_votes_count_or_and_over_all_threads(tmp_path: Path) -> None:
    out, buffer = guarded_array((100, 3), np.int32, name="out")
    report = run_kernel(write_kernel(tmp_path, VOTES, "int* out"), buffer, threads=100)
    assert report.faults == ()
    assert np.array_equal(np.unique(out, axis=0), [[34, 1, 0]])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_named_barriers_order_producer_and_consumer(schedule: str, tmp_path: Path) -> None:
    out, buffer = guarded_array((4, 64), np.float32, name="out")
    source = write_kernel(tmp_path, PRODUCER_CONSUMER)
    report = run_kernel(source, buffer, threads=128, shared_bytes=256, schedule=SCHEDULES[schedule])
    assert report.faults == ()
    assert np.array_equal(out, 63 - np.arange(64) + np.arange(4)[:, None])


def test_consumer_that_reads_after_it_released_the_buffer_is_a_race(tmp_path: Path) -> None:
    _, buffer = guarded_array((4, 64), np.float32, name="out")
    body = PRODUCER_CONSUMER.replace("= value;", "= shared[127 - t];")
    faults = run_kernel(write_kernel(tmp_path, body), buffer, threads=128, shared_bytes=256).faults
    assert {(fault.kind, fault.buffer) for fault in faults} == {(FaultKind.RACE, SHARED_MEMORY)}


def test_producer_that_arrives_twice_in_one_round_is_a_divergence(tmp_path: Path) -> None:
    _, buffer = guarded_array((4, 64), np.float32, name="out")
    body = PRODUCER_CONSUMER.replace("if (round > 0)", "if (false)")
    faults = run_kernel(write_kernel(tmp_path, body), buffer, threads=128, shared_bytes=256).faults
    assert "arrives twice at barrier 1" in faults[-1].message


def test_named_barrier_of_some_warps_does_not_order_the_others(tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.float32, name="out")
    body = """
    if (threadIdx.x == 0) out[0] = 1.0f;
    if (threadIdx.x < 64) named_barrier_sync(1, 64);
    if (threadIdx.x == 95) out[0] = 2.0f;
    """
    (fault,) = run_kernel(write_kernel(tmp_path, body), buffer, threads=96).faults
    assert (fault.kind, {fault.line, fault.other_line}) == (FaultKind.RACE, {4, 6})


def test_two_barriers_at_different_lines_are_a_divergence(tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.float32, name="out")
    body = "if (threadIdx.x < 32)\n__syncthreads();\nelse\n__syncthreads();"
    (fault,) = run_kernel(write_kernel(tmp_path, body), buffer, threads=64).faults
    assert (fault.kind, {fault.line, fault.other_line}) == (FaultKind.BARRIER_DIVERGENCE, {4, 6})


def test_named_barrier_that_too_few_threads_reach_is_a_deadlock(tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.float32, name="out")
    (fault,) = run_kernel(write_kernel(tmp_path, "named_barrier_sync(3, 96);"), buffer, threads=64).faults
    assert (fault.kind, fault.line) == (FaultKind.DEADLOCK, 3)
    assert "64 wait at barrier 3" in fault.message


def test_barrier_in_some_lanes_against_a_warp_operation_in_the_others_is_a_deadlock(tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.float32, name="out")
    body = "if (threadIdx.x < 16) __syncthreads(); else __syncwarp();"
    (fault,) = run_kernel(write_kernel(tmp_path, body), buffer).faults
    assert fault.kind is FaultKind.DEADLOCK


@pytest.mark.parametrize(("count", "message"), [("33", "multiple of 32"), ("32); named_barrier_sync(16, 32", "0..15")])
def test_malformed_named_barrier_is_trapped(count: str, message: str, tmp_path: Path) -> None:
    _, buffer = guarded_array((1,), np.float32, name="out")
    (fault,) = run_kernel(write_kernel(tmp_path, f"named_barrier_sync(1, {count});"), buffer).faults
    assert fault.kind is FaultKind.TRAP
    assert message in fault.message
