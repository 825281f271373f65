"""Laws of totals, matrix, failure kinds and routes."""

from __future__ import annotations

import math
from collections.abc import Callable

from verify.candidate import Route
from verify.record import Record
from verify.report.overview import failure_groups, overview_of
from verify.verdict import Comparison, Finding, Status

MakeRecord = Callable[..., Record]
MakeComparison = Callable[..., Comparison]


def test_every_record_is_counted_once_in_the_totals_and_once_for_its_candidate(
    make_records: Callable[[int], list[Record]],
) -> None:
    found = overview_of(make_records(300))
    assert found.totals.total == sum(found.statuses.values()) == 300
    assert sum(tally.total for tally in found.candidates.values()) == 300
    assert found.totals.failed == sum(group.count for group in found.groups)


def test_powerless_is_neither_passed_nor_failed_nor_skipped(make_record: MakeRecord) -> None:
    totals = overview_of([make_record("attn1:x", "mine", [Finding(check="power", status=Status.POWERLESS)])]).totals
    assert (totals.passed, totals.failed, totals.skipped, totals.powerless) == (0, 0, 0, 1)


def test_failures_that_differ_in_tensor_or_status_are_different_kinds(
    make_record: MakeRecord, make_comparison: MakeComparison
) -> None:
    def failing(status: Status, tensor: str) -> Record:
        accepted, rejected = make_comparison("dv", 0.5), make_comparison(tensor, 7.0)
        return make_record("attn1:x", "mine", [Finding(check="b", status=status, comparisons=(accepted, rejected))])

    numerical, nonfinite = Status.NUMERICAL, Status.NONFINITE
    records = [failing(numerical, "dq"), failing(numerical, "dk"), failing(nonfinite, "dq"), failing(numerical, "dq")]
    groups = failure_groups(records)
    assert [group.places for group in groups] == [[0, 3], [1], [2]]
    assert groups[0].label == "mine: NUMERICAL in b dq"


def test_an_error_over_bound_that_is_no_number_is_never_hidden(
    make_record: MakeRecord, make_comparison: MakeComparison
) -> None:
    compared = [make_comparison("out", ratio) for ratio in (0.5, math.nan, 3.0)]
    records = [
        make_record("attn1:x", "mine", [Finding(check="f", status=Status.PASS, comparisons=(c,))]) for c in compared
    ]
    assert math.isnan(overview_of(records).totals.ratio)
    assert overview_of(records[::2]).totals.ratio == 3.0


def test_a_route_other_than_the_asked_one_is_a_fallback_with_or_without_a_reason(make_record: MakeRecord) -> None:
    routes = [
        Route(backend="flash", asked="flash"),
        Route(backend="flash"),
        Route(backend="math", asked="flash"),
        Route(backend="math", asked="flash", fallback_reason="fp32"),
        None,
    ]
    found = overview_of([make_record("attn1:x", "mine", route=route) for route in routes])
    assert found.fallbacks == {"mine": 0.5}
    assert [(route.backend, route.count) for route in found.routes] == [("flash", 2), ("math", 1), ("math", 1)]
    assert found.unrouted == {"mine": 1}
