"""Latest autoscaling decisions of each deployment: Serve's controller writes them into Ray's KV, routers read them."""

import json
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from urllib.parse import quote

from rayinfer_deployments.discovery.scale_from_zero import Table

KEPT = 20
REPEAT_S = 5.0  # Serve may ask again before it has taken a decision

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingDecision:
    """One change of the wanted number of engines."""

    time_s: float  # since 1970
    before: int
    after: int
    reason: str

    def is_repeated_by(self, later: "ScalingDecision") -> bool:
        """Return whether a later decision is the same one, asked for again."""
        is_same = (self.before, self.after) == (later.before, later.after)
        return is_same and later.time_s - self.time_s < REPEAT_S


class ScalingDecisions:
    """Decisions in a table, the latest last."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def record(self, application: str, deployment: str, decision: ScalingDecision) -> None:
        """Keep a decision; a table that is away loses it, the decision holds."""
        try:
            known = self.read(application, deployment)
            if known and known[-1].is_repeated_by(decision):
                return
            kept = [asdict(each) for each in [*known, decision][-KEPT:]]
            self._table.put(_key(application, deployment), json.dumps(kept).encode())
        except Exception:  # Serve's controller has more to do than this
            logger.exception("an autoscaling decision could not be recorded")

    def read(self, application: str, deployment: str) -> Sequence[ScalingDecision]:
        """Return the latest decisions."""
        key = _key(application, deployment)
        raw = self._table.read(key).get(key)
        return [] if raw is None else [ScalingDecision(**each) for each in json.loads(raw)]


def _key(application: str, deployment: str) -> str:
    return f"decisions/{quote(application, safe='')}/{quote(deployment, safe='')}"
