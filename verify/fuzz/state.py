"""Where a campaign stands, put together from the lines of its log: faults, counts, coverage, positions of the lanes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from verify.contract import Capabilities
from verify.fuzz.coverage import AXES_VERSION, FeatureCoverage
from verify.fuzz.faults import FaultKey
from verify.fuzz.log import Found, Gone, Line, Progress, Reduced, Started


@dataclass(slots=True, kw_only=True)
class Fault:
    """One fault: where it was found, its smallest case so far."""

    found: Found
    reduced: Reduced | None = None
    count: int = 1
    """Failing cases that showed it."""

    @property
    def key(self) -> FaultKey:
        return self.found.key

    @property
    def case_id(self) -> str:
        return self.reduced.case_id if self.reduced else self.found.case_id

    @property
    def candidate(self) -> str:
        return self.reduced.candidate if self.reduced else self.found.candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a lane goes on."""

    grid: int = 0
    uniform: int = 0
    rounds: int = 0


@dataclass(slots=True, kw_only=True)
class CampaignState:
    """Sum of the lines read so far."""

    coverage: FeatureCoverage
    examples: int = 0
    seconds: float = 0.0
    """Of all lanes together."""
    worst_ratio: float = 0.0
    """Largest error/bound of a case that passed."""
    worst_case: str = ""
    faults: dict[str, Fault] = field(default_factory=dict)
    gone: list[Gone] = field(default_factory=list)
    positions: dict[tuple[int, int], Position] = field(default_factory=dict)
    """(seed, lane) -> position."""
    axes_match: bool = True

    @staticmethod
    def empty(capabilities: Capabilities, max_seqlen: int) -> CampaignState:
        """A campaign that has not begun."""
        return CampaignState(coverage=FeatureCoverage(capabilities, max_seqlen))

    def apply(self, lines: Iterable[Line]) -> None:
        """Take in more lines."""
        for line in lines:
            self._apply(line)

    def _apply(self, line: Line) -> None:
        match line:
            case Started():
                self.axes_match = line.axes_version == AXES_VERSION
            case Progress():
                self._progress(line)
            case Found():
                self.faults.setdefault(str(line.key), Fault(found=line))
            case Reduced():
                self._reduced(line)
            case Gone():
                self.gone.append(line)
                self.faults.pop(line.fault, None)

    def _progress(self, line: Progress) -> None:
        self.examples += line.examples
        self.seconds += line.seconds
        if line.worst_ratio > self.worst_ratio:
            self.worst_ratio, self.worst_case = line.worst_ratio, line.worst_case
        self.positions[line.seed, line.lane] = Position(grid=line.grid, uniform=line.uniform, rounds=line.rounds)
        if self.axes_match:
            self.coverage.merge(line.new)
        for key, count in Counter(line.counts).items():
            if key in self.faults:
                self.faults[key].count += count

    def _reduced(self, line: Reduced) -> None:
        # A later search goes on from where an earlier one ended.
        if line.fault in self.faults:
            self.faults[line.fault].reduced = line
