"""On a GPU: candidates that keep to the current stream pass, those that do not are found."""

import pytest

from tests.gpu.stream_expectations import EXPECTATIONS, Build, finding_on_gpu
from verify.candidates.cuda import DEVICE_VARIABLE
from verify.candidates.torch_device import gpu_missing
from verify.verdict import Status


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("build", "dtype", "check", "right"),
    [pytest.param(*expected[1:], id=f"{expected[0]}-{expected[3]}") for expected in EXPECTATIONS],
)
def test_order_of_work_is_judged(
    build: Build, dtype: str, check: str, right: tuple[Status, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    missing = gpu_missing()
    if missing is not None:
        pytest.skip(missing)
    monkeypatch.setenv(DEVICE_VARIABLE, "gpu")
    finding = finding_on_gpu(build, dtype, check)
    if isinstance(finding, str):
        pytest.skip(finding)
    assert finding.status in right, finding.reasons
