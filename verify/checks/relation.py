"""A relation between two calls of one candidate: what the second must return, bit for bit, given the first.

Bits may differ for a legal reason (another kernel variant, tile order or rounding point). Then, and where a relation
only holds within rounding, the second call is judged by the reference and the bounds of its own inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from verify.checks.case_run import CaseRun
from verify.checks.variation import Array, Ledger, same_bits

View = Callable[[str, Array], Array]


def whole(name: str, array: Array) -> Array:
    """The output as it is."""
    return array


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """One changed call and what it must give."""

    label: str
    varied: CaseRun
    backward: bool
    expected: Mapping[str, Array] = field(default_factory=dict)
    """Output -> what `view` of the second call's output must equal; empty = the relation holds within rounding only."""
    view: View = whole
    """Part of an output of the second call that the relation speaks of."""


def hold(ledger: Ledger, relation: Relation) -> None:
    """Note in the ledger whether the relation holds."""
    outputs = ledger.outputs(relation.varied, relation.label, backward=relation.backward)
    if outputs is None or _holds_in_bits(ledger, relation, outputs):
        return
    if relation.expected:
        ledger.compare_case()
    ledger.compare(relation.varied, relation.label, backward=relation.backward)


def _holds_in_bits(ledger: Ledger, relation: Relation, outputs: Mapping[str, Array]) -> bool:
    if not relation.expected or not ledger.run.contract.capabilities.deterministic:
        return False
    return all(
        name in outputs and same_bits(relation.view(name, outputs[name]), values)
        for name, values in relation.expected.items()
    )
