"""Users' kernels: every form of naming one loads, every style of function gives the same answer, errors are theirs."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import numpy as np
import pytest

from kernels.backend import Module
from kernels.cubin import compile_cubin
from verify.candidate import Call, KernelFaultError, RefusedError, source_hash
from verify.candidates import load
from verify.candidates.user import names_user_code
from verify.case import Case
from verify.commands.template import STYLES, template_text
from verify.errors import UsageError
from verify.inputs import make_inputs
from verify.registration import declaration_of, register
from verify.registration.cuda_source import evaluate
from verify.runner import RunOptions, run_cases
from verify.verdict import Status
from verify.worker import candidate_for

CASE = Case.parse("attn1:b=2,sq=5,sk=7,h=2,d=8,dtype=fp32,causal=1,seed=1")
HEAD = "import numpy as np\nimport verify\n"
PLAIN = (
    HEAD
    + """
def probs_of(q, k, softmax_scale, causal):
    s = np.einsum("bihd,bjhd->bhij", q, k) * np.float32(softmax_scale)
    if causal:
        s = np.where(np.tri(*s.shape[2:], s.shape[3] - s.shape[2], dtype=bool), s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    lse = (np.log(p.sum(-1, keepdims=True)) + top)[..., 0]
    return (p / p.sum(-1, keepdims=True)).astype(np.float32), lse.astype(np.float32)
"""
)
STYLES_OF_FUNCTION = {
    "returned": """
@verify.register(returns=("out", "lse"))
def f(q, k, v, softmax_scale, causal):
    p, lse = probs_of(q, k, softmax_scale, causal)
    return np.einsum("bhij,bjhd->bihd", p, v), lse
""",
    "dict": """
@verify.register(returns=("out", "lse"))
def f(query, key, value, scale, is_causal=False):
    p, lse = probs_of(query, key, scale, is_causal)
    return {"lse": lse, "out": np.einsum("bhij,bjhd->bihd", p, value)}
""",
    "filled": """
@verify.register
def f(q, k, v, out, lse, softmax_scale, causal):
    p, lse[...] = probs_of(q, k, softmax_scale, causal)
    out[...] = np.einsum("bhij,bjhd->bihd", p, v)
""",
    "heads_first": """
@verify.register(layout="bhsd", returns=("out", "lse"))
def f(q, k, v, softmax_scale, causal):
    p, lse = probs_of(q.swapaxes(1, 2), k.swapaxes(1, 2), softmax_scale, causal)
    return np.einsum("bhij,bhjd->bhid", p, v), lse
""",
}


BACKWARDS = {
    "returned": """
def b(q, k, v, out, lse, dout, softmax_scale, causal):
    return gradients(q, k, v, out, dout, softmax_scale, causal)

@verify.register(returns=("out", "lse"), backward=b)
def f(q, k, v, softmax_scale, causal):
    p, lse = probs_of(q, k, softmax_scale, causal)
    return np.einsum("bhij,bjhd->bihd", p, v), lse
""",
    "filled": """
def b(q, k, v, o, do, dq, dk, dv, scale, causal):
    for buffer, gradient in zip((dq, dk, dv), gradients(q, k, v, o, do, scale, causal)):
        buffer[...] = gradient

@verify.register(returns=("out", "lse"), backward=b)
def f(q, k, v, softmax_scale, causal):
    p, lse = probs_of(q, k, softmax_scale, causal)
    return np.einsum("bhij,bjhd->bihd", p, v), lse
""",
    "heads_first": """
def b(q, k, v, out, dout, softmax_scale, causal):
    turned = [x.swapaxes(1, 2) for x in (q, k, v, out, dout)]
    found = gradients(*turned, softmax_scale, causal)
    return {name: x.swapaxes(1, 2) for name, x in zip(("dq", "dk", "dv"), found)}

@verify.register(layout="bhsd", backward=b)
def f(q, k, v, softmax_scale, causal):
    p, _ = probs_of(q.swapaxes(1, 2), k.swapaxes(1, 2), softmax_scale, causal)
    return np.einsum("bhij,bhjd->bhid", p, v)
""",
}
GRADIENTS = """
def gradients(q, k, v, out, dout, scale, causal):
    p, _ = probs_of(q, k, scale, causal)
    ds = p * (np.einsum("bihd,bjhd->bhij", dout, v) - np.einsum("bihd,bihd->bhi", dout, out)[..., None]) * scale
    products = (("bhij,bjhd->bihd", ds, k), ("bhij,bihd->bjhd", ds, q), ("bhij,bihd->bjhd", p, dout))
    return tuple(np.einsum(*product).astype(np.float32) for product in products)
"""
WRITES_BEHIND_OUT = """
from verify import CudaSource, Launch
SOURCE = '''extern "C" __global__ void f(const float* q, float* out, int n) {
    for (int i = 0; i <= n; ++i) out[i] = q[i < n ? i : 0];
}'''
launch = Launch(entry="f", grid=(1,), block=(1,), args=("q", "out", "seqlen_q"))
g = CudaSource(source=SOURCE, forward=[launch], checked=True)
"""


def write(folder: Path, text: str, name: str = "mine.py") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def call(*, backward: bool = False) -> Call:
    return Call(problem=CASE.problem, arrays=make_inputs(CASE).arrays, backward=backward)


@pytest.mark.parametrize("style", STYLES_OF_FUNCTION)
def test_every_style_of_function_gives_the_same_outputs(style: str, tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + STYLES_OF_FUNCTION[style])
    expected = load("numpy_tiled").run(call()).outputs
    outputs = load(f"{path}::f").run(call()).outputs
    assert set(outputs) == {"out", "lse"}
    for name, array in outputs.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("style", BACKWARDS)
def test_every_style_of_backward_gives_the_same_gradients(style: str, tmp_path: Path) -> None:
    path = write(tmp_path, PLAIN + GRADIENTS + BACKWARDS[style])
    expected = load("numpy_tiled").run(call(backward=True)).outputs
    outputs = load(f"{path}::f").run(call(backward=True)).outputs
    for name in ("dq", "dk", "dv"):
        np.testing.assert_allclose(outputs[name], expected[name], rtol=1e-4, atol=1e-5)


def test_write_behind_a_buffer_of_a_cuda_source_is_named(tmp_path: Path) -> None:
    candidate = load(write(tmp_path, WRITES_BEHIND_OUT) + "::g")
    reason = candidate.unavailable()
    if reason is not None:
        pytest.skip(reason)
    case = Case.parse("attn1:b=1,sq=4,sk=4,h=1,d=1,dtype=fp32")
    with pytest.raises(KernelFaultError, match="out at byte 16") as caught:
        candidate.run(Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=False))
    assert caught.value.status is Status.OUT_OF_BOUNDS


@pytest.mark.parametrize("style", STYLES)
def test_every_template_passes_a_case_of_each_kind(style: str, tmp_path: Path) -> None:
    name = write(tmp_path, template_text(style)) + "::attention"
    reason = load(name).unavailable()
    if reason is not None:
        pytest.skip(reason)
    options = RunOptions(candidates=(name,), run_id="test")
    (record,) = run_cases([CASE], options, on_line=lambda line: None)
    assert record.verdict.status is Status.PASS, record.verdict.findings
    assert {finding.check for finding in record.verdict.findings} >= {"forward", "lse", "backward"}


def test_the_cuda_template_compiles_for_a_gpu_too(tmp_path: Path) -> None:
    pytest.importorskip("cupy", reason="NVRTC is reached through CuPy")
    source = tmp_path / "kernel.cu"
    source.write_text(template_text("cu").split('r"""')[1].split('"""')[0])
    entries = ("forward", "backward_dq", "backward_dkv")
    assert set(compile_cubin(Module(source=source, entries=entries), "sm_80").usage) == set(entries)


def test_arguments_of_the_signature_are_the_declared_features() -> None:
    def f(q, k, v, softmax_scale, causal, window_size, cu_seqlens_q, cu_seqlens_k, mask=None, softcap=0.0): ...  # type: ignore[no-untyped-def]

    declared = declaration_of(f).contract.capabilities
    assert declared.features == {"causal", "window", "ragged", "boolean", "softcap"}
    assert declared.outputs == {"out"}
    assert not declared.backward


def test_required_features_may_be_any_collection() -> None:
    for given in (["causal"], {"causal"}, ("causal",)):

        @register(required=given)
        def attention(q, k, v, softmax_scale, causal):  # type: ignore[no-untyped-def]
            return q

        assert declaration_of(attention).contract.capabilities.required == frozenset({"causal"})


def test_top_left_kernel_declares_the_other_feature() -> None:
    def f(q, k, v, softmax_scale, causal): ...  # type: ignore[no-untyped-def]

    register(f, alignment="top_left")
    assert declaration_of(f).contract.capabilities.features == {"causal_topleft"}


@pytest.mark.parametrize(
    ("signature", "options", "expected"),
    [
        ("q, k, v", {}, "a parameter softmax_scale"),
        ("q, k, v, softmax_scale, rope", {}, "parameter 'rope'"),
        ("q, k, v, softmax_scale", {"features": ("softcap",)}, "to take softcap"),
        ("q, k, v, softmax_scale", {"dtypes": ("int4",)}, "int4"),
        ("q, k, v, softmax_scale", {"speed": 3}, "speed"),
        ("q, k, v, softmax_scale", {"layout": "sbhd"}, "bshd, bhsd"),
        ("q, k, v, softmax_scale", {"arithmetic": "magic"}, "fused, eager"),
        ("q, k, v, softmax_scale", {"autograd": True}, "torch tensors"),
    ],
)
def test_wrong_declarations_are_refused_in_one_line(signature: str, options: dict[str, object], expected: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"def f({signature}): ...", namespace)
    with pytest.raises(UsageError, match=expected) as caught:
        register(namespace["f"], arrays="numpy", **options)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_wrong_number_of_results_is_a_shape_fault(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + '@verify.register(returns=("out","lse"))\ndef f(q, k, v, softmax_scale): return q\n')
    case = Case.parse("attn1:b=1,sq=2,sk=2,h=1,d=8,dtype=fp32")
    with pytest.raises(KernelFaultError, match="returned 1 values: expected 2") as caught:
        load(f"{path}::f").run(Call(problem=case.problem, arrays=make_inputs(case).arrays, backward=False))
    assert caught.value.status is Status.SHAPE


def test_undeclared_problem_and_backward_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + "def f(q, k, v, softmax_scale, causal): return q\n")
    with pytest.raises(RefusedError, match="no backward"):
        load(f"{path}::f").run(call(backward=True))


def test_error_in_a_users_file_shows_the_users_traceback_only(tmp_path: Path) -> None:
    path = write(tmp_path, "def helper():\n    return 1 / 0\n\nhelper()\n")
    with pytest.raises(UsageError) as caught:
        load(f"{path}::f")
    text = str(caught.value)
    assert "line 4, in <module>" in text
    assert "ZeroDivisionError" in text
    assert "verify/candidates" not in text
    assert "importlib" not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [("def (", "SyntaxError"), ("raise SystemExit(0)", "SystemExit"), ("g = 3", "expected one of")],
)
def test_file_without_a_candidate_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=expected):
        load(write(tmp_path, text) + "::f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import os; os._exit(0)", "exited with code 0"),
        ("import numpy; numpy.allclose = None; 1 / 0", "ZeroDivisionError"),
        ("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    ],
)
def test_declaration_is_asked_in_the_candidates_own_process(text: str, expected: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"did not start.*{expected}"):
        candidate_for(write(tmp_path, text) + "::f")
    assert np.allclose(1.0, 1.0)


def test_declaration_from_another_process_equals_the_loaded_one(tmp_path: Path) -> None:
    name = write(tmp_path, PLAIN + STYLES_OF_FUNCTION["returned"]) + "::f"
    described, loaded = candidate_for(name), load(name)
    assert (described.name, described.contract) == (loaded.name, loaded.contract)
    assert source_hash(described) == source_hash(loaded)
    assert candidate_for("numpy_tiled").contract == load("numpy_tiled").contract


def test_missing_file_is_named() -> None:
    with pytest.raises(UsageError, match=r"expected a file nowhere\.py"):
        load("nowhere.py::f")


def test_module_and_entry_point_name_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, PLAIN + STYLES_OF_FUNCTION["returned"], "mine_installed.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    entry = importlib.metadata.EntryPoint("mine", "mine_installed:f", "attn_verify.candidates")
    monkeypatch.setattr("verify.candidates.user.loading.entry_points", lambda group: [entry])
    assert [load(name).name for name in ("mine_installed:f", "mine")] == ["mine_installed:f", "mine"]


def test_naming_a_module_runs_nothing_of_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_loud").mkdir()
    write(tmp_path / "mine_loud", "raise ValueError('ran')", "__init__.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert names_user_code("mine_loud.inner:f")
    with pytest.raises(UsageError, match="did not start: ValueError: ran"):
        candidate_for("mine_loud.inner:f")


def test_launch_description_reads_from_toml(tmp_path: Path) -> None:
    write(tmp_path, "", "mine.cu")
    name = write(
        tmp_path,
        """source = "mine.cu"
features = ["causal"]
[[forward]]
entry = "f"
grid = ["ceil_div(seqlen_q, 4)", "nheads"]
block = 32
args = ["q", "k", "v", "out", "softmax_scale"]
""",
        "mine.toml",
    )
    capabilities = load(name).contract.capabilities
    assert (capabilities.outputs, capabilities.features, capabilities.backward) == ({"out"}, {"causal"}, False)


@pytest.mark.parametrize(("size", "value"), [("ceil_div(n, 4) * 2 + 1", 7), ("max(n, 20) // 3", 6), (5, 5)])
def test_sizes_are_arithmetic_over_names(size: int | str, value: int) -> None:
    assert evaluate(size, {"n": 10}) == value


@pytest.mark.parametrize("size", ["m", "n ** 2", "__import__('os')", "n //", "n // 0"])
def test_other_expressions_are_refused(size: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        evaluate(size, {"n": 10})
