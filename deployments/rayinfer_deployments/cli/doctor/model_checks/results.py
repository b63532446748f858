"""Result of one check of a model."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckResult:
    """Verdict of one check, with what was measured and what to do."""

    name: str
    verdict: Verdict
    reason: str  # what was measured
    remedy: str = ""


def passed(name: str, reason: str) -> CheckResult:
    """Return the result of a check that found nothing."""
    return CheckResult(name=name, verdict="pass", reason=reason)


def warned(name: str, reason: str, remedy: str) -> CheckResult:
    """Return a result that costs something, but breaks nothing."""
    return CheckResult(name=name, verdict="warn", reason=reason, remedy=remedy)


def failed(name: str, reason: str, remedy: str) -> CheckResult:
    """Return a result with which the model should not be served."""
    return CheckResult(name=name, verdict="fail", reason=reason, remedy=remedy)
