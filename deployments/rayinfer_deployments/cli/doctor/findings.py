"""Result of one check of `rayinfer doctor`."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "advice", "missing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Verdict of one check, with what was found and its remedy."""

    name: str
    verdict: Verdict  # missing: nothing works without it
    found: str
    remedy: str = ""  # the command or the step that mends it
