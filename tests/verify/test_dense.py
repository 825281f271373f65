"""A sequence cut out of a case holds exactly its own numbers, and what is put back lands where it came from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from verify.candidate import output_shapes
from verify.case import Case, Recipe
from verify.dense import dense_sequences, put_outputs, take_outputs
from verify.inputs import make_inputs
from verify.oracle import reference_outputs
from verify.problem import AttentionProblem

PLAIN = AttentionProblem(
    batch=3, seqlen_q=5, seqlen_k=7, nheads=4, nheads_kv=2, head_dim=8, head_dim_v=6, softmax_scale=0.3
)
RAGGED = replace(PLAIN, cu_seqlens_q=(0, 5, 5, 9), cu_seqlens_k=(0, 2, 9, 9))
PADDED = replace(PLAIN, seqlens_k=(7, 0, 4))
PAGED = replace(PADDED, page_size=3)
FORMS = {"plain": PLAIN, "ragged": RAGGED, "padded": PADDED, "paged": PAGED}


def _arrays(problem: AttentionProblem) -> dict[str, Any]:
    return dict(make_inputs(Case(problem=problem, recipe=Recipe.of("normal"), seed=4)).arrays)


@pytest.mark.parametrize("form", FORMS)
def test_no_poison_beyond_the_lengths_reaches_a_sequence(form: str) -> None:
    for sequence in dense_sequences(FORMS[form], _arrays(FORMS[form])):
        assert (sequence.seqlen_q, sequence.seqlen_k) == FORMS[form].lengths(sequence.index)
        assert all(np.isfinite(array).all() for array in (sequence.q, sequence.k, sequence.v))


@pytest.mark.parametrize("form", FORMS)
def test_softmax_of_the_dense_arrays_is_the_reference(form: str) -> None:
    problem, arrays = FORMS[form], _arrays(FORMS[form])
    reference = reference_outputs(problem, arrays, backward=False).outputs
    for sequence in dense_sequences(problem, arrays):
        keys, values = (np.repeat(array, sequence.group, axis=0) for array in (sequence.k, sequence.v))
        weights = np.exp(sequence.softmax_scale * sequence.q @ keys.swapaxes(1, 2))
        known = take_outputs(problem, reference, sequence)
        total = weights.sum(axis=-1, keepdims=True)
        expected = weights @ values / np.where(total > 0, total, 1.0)
        np.testing.assert_allclose(known["out"], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("form", FORMS)
def test_taking_and_putting_back_restores_every_output(form: str) -> None:
    problem, arrays = FORMS[form], _arrays(FORMS[form])
    shapes = output_shapes(problem, arrays)
    rng = np.random.default_rng(1)
    outputs = {name: np.zeros(shape) for name, shape in shapes.items()}
    for sequence in dense_sequences(problem, arrays):
        parts = {
            name: rng.standard_normal(part.shape) for name, part in take_outputs(problem, outputs, sequence).items()
        }
        put_outputs(problem, outputs, sequence, parts)
        for name, part in take_outputs(problem, outputs, sequence).items():
            assert_array_equal(part, parts[name], err_msg=name)


def test_put_adds_to_what_is_shared_by_sequences() -> None:
    problem = replace(PLAIN, bias="additive", bias_broadcast=(True, True), sink=True)
    arrays = _arrays(problem)
    totals = {"dbias": np.zeros((1, 1, 5, 7)), "dsink": np.zeros(4)}
    for sequence in dense_sequences(problem, arrays):
        put_outputs(problem, totals, sequence, {"dbias": np.ones((1, 5, 7)), "dsink": np.ones(4)})
    assert_array_equal(totals["dbias"], 3.0)
    assert_array_equal(totals["dsink"], 3.0)


def test_block_of_the_keep_mask_equals_the_cut_of_the_whole() -> None:
    problem = replace(PLAIN, causal=True, window=(2, 0), pattern="boolean", bias="alibi")
    sequence = next(dense_sequences(problem, _arrays(problem)))
    heads, rows, keys = slice(1, 3), slice(2, 5), slice(3, 6)
    keep, bias = sequence.keep, sequence.bias
    assert keep is not None
    assert bias is not None
    whole = np.broadcast_to(keep, (4, 5, 7))[heads, rows, keys]
    assert_array_equal(np.broadcast_to(sequence.keep_block(heads, rows, keys), whole.shape), whole)
    assert_array_equal(sequence.bias_block(heads, rows, keys), bias[heads, rows, keys])


def test_nothing_hidden_means_no_mask() -> None:
    sequence = next(dense_sequences(PLAIN, _arrays(PLAIN)))
    assert sequence.keep is None
    assert sequence.bias is None
    assert sequence.dropout_keep is None


def test_dense_arrays_never_alias_the_inputs() -> None:
    arrays = _arrays(PLAIN)
    before = {name: array.copy() for name, array in arrays.items()}
    for sequence in dense_sequences(PLAIN, arrays):
        for array in (sequence.q, sequence.k, sequence.v):
            array[...] = 0.0
    assert_array_equal(arrays["q"], before["q"])
