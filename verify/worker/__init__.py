"""The candidate's own process: whatever it does there, the caller gets a typed outcome and goes on."""

from verify.worker.parent import ProcessSession, candidate_for
from verify.worker.session import InProcessSession, Outcome, Session

__all__ = ["InProcessSession", "Outcome", "ProcessSession", "Session", "candidate_for"]
