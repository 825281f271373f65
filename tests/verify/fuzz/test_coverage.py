"""Pairs and triples are counted of what the candidate declares, once each, and survive a restart."""

from hypothesis import given
from hypothesis import strategies as st

from verify.case import Case
from verify.contract import OPTIONAL_FEATURES, Arithmetic, Capabilities, Contract
from verify.fuzz.coverage import FeatureCoverage, combination_numbers
from verify.strategies import cases

EVERYTHING = Capabilities(features=OPTIONAL_FEATURES)
PLAIN = Contract(
    capabilities=Capabilities(dtypes=frozenset({"fp32"}), features=frozenset(), layouts=frozenset({"bshd"})),
    arithmetic={"fp32": Arithmetic()},
).capabilities
CASE = Case.parse("attn1:b=1,sq=16,sk=16,h=1,d=64,dtype=fp32,recipe=normal,seed=0")


def test_a_case_counts_once() -> None:
    coverage = FeatureCoverage(EVERYTHING, 160)
    assert len(coverage.add(CASE)) > 50
    assert coverage.add(CASE) == []


def test_numbers_written_down_give_the_same_share() -> None:
    first, second = FeatureCoverage(EVERYTHING, 160), FeatureCoverage(EVERYTHING, 160)
    second.merge(first.add(CASE))
    assert (first.share(2), first.share(3)) == (second.share(2), second.share(3))


def test_what_a_candidate_does_not_declare_is_no_gap() -> None:
    wide, narrow = FeatureCoverage(EVERYTHING, 160), FeatureCoverage(PLAIN, 160)
    wide.add(CASE)
    narrow.add(CASE)
    assert narrow.share(2) > 2 * wide.share(2)


@given(drawn=st.lists(cases(capabilities=EVERYTHING, max_seqlen=40), min_size=1, max_size=3))
def test_shares_stay_between_zero_and_one_and_grow(drawn: list[Case]) -> None:
    coverage = FeatureCoverage(EVERYTHING, 160)
    before = 0.0
    for case in drawn:
        coverage.add(case)
        assert before <= coverage.share(2) <= 1
        before = coverage.share(2)


def test_every_pair_and_triple_has_its_own_number() -> None:
    numbers = combination_numbers()
    assert len(set(numbers.values())) == len(numbers)
    assert {len(combination) for combination in numbers} == {2, 3}
