"""Candidates that a user brings: functions, objects and CUDA sources, from a file, a module or an entry point."""

from verify.candidates.user.loading import ENTRY_POINT_GROUP, UserCodeError, load_user, names_user_code

__all__ = ["ENTRY_POINT_GROUP", "UserCodeError", "load_user", "names_user_code"]
