"""What `rayinfer doctor` says of one thing that it has looked at."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["ok", "advice", "missing"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing looked at."""

    name: str
    verdict: Verdict  # missing: nothing works without it
    found: str
    remedy: str = ""  # the command or the step that mends it
