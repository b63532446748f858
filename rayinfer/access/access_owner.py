"""Owner of what several routers share: keys, what is counted across routers, and the usage log."""

import hashlib
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rayinfer.access.api_key import ApiKey
from rayinfer.access.key_file import WatchedKeyFile
from rayinfer.access.owner_messages import KeyTotals, NamedUsage, OwnerUpdate, RouterReport
from rayinfer.access.usage import day_of
from rayinfer.access.usage_log import UsageLog, usage_log_path

ROUTER_SILENT_S = 5.0
KEPT_REVISIONS = 16  # of the keys: a router that has one of them gets only what changed since

logger = logging.getLogger(__name__)

_Lines = Mapping[str, str]  # of keys, by id


@dataclass(slots=True)
class _Router:
    """Latest report of a router."""

    heard_s: float
    totals: dict[str, KeyTotals] = field(default_factory=dict)
    changes: dict[str, int] = field(default_factory=dict)  # by key id: number of its latest change


class AccessOwner:
    """The one owner of shared state; all that must survive its end is on disk or sent again by the routers."""

    def __init__(
        self,
        key_file: Path,
        *,
        environment_keys: Sequence[ApiKey] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.usage_log = UsageLog(usage_log_path(key_file))
        self._name = uuid.uuid4().hex
        self._key_file = WatchedKeyFile(key_file)
        self._environment_keys = list(environment_keys)
        self._clock = clock
        self._routers: dict[str, _Router] = {}
        self._num_changes = 0
        self._revisions: OrderedDict[str, _Lines] = OrderedDict()
        self._names: dict[str, str] = {}
        self._refresh_keys()

    def sync(self, report: RouterReport) -> OwnerUpdate:
        """Take a router's report and return what it does not know yet; harmless when repeated."""
        if report.usage:
            self.usage_log.record(report.router, report.sequence, report.usage)
        if report.last_used_s:
            self.usage_log.note_used(report.last_used_s)
        self._note_totals(report)
        self._refresh_keys()
        seen = report.seen if report.owner == self._name else 0
        totals = {
            name: {key_id: router.totals[key_id] for key_id, change in router.changes.items() if change > seen}
            for name, router in self._routers.items()
            if name != report.router
        }
        revision = next(reversed(self._revisions), report.keys_revision)
        added, removed = self._key_changes(report.keys_revision, revision)
        day = day_of()
        counted = {*report.totals, *(key_id for of_router in totals.values() for key_id in of_router)}
        output_tokens = (
            {key_id: self.usage_log.output_tokens(day, key_id) for key_id in counted}
            if seen
            else self.usage_log.all_output_tokens(day)
        )
        return OwnerUpdate(
            owner=self._name,
            seen=self._num_changes,
            keys_revision=revision,
            has_keys=bool(self._revisions),
            key_error=self._key_file.error,
            has_all_keys=report.keys_revision not in self._revisions,
            added_keys=added,
            removed_keys=removed,
            totals={name: of_router for name, of_router in totals.items() if of_router},
            routers=list(self._routers),
            output_tokens=output_tokens,
            day=day,
        )

    def usage(self, first_day: str, key_id: str | None) -> NamedUsage:
        """Return the usage since a day, of one key or of all."""
        rows = self.usage_log.rows(first_day, key_id)
        return NamedUsage(rows, {row.key.key_id: self._names.get(row.key.key_id, "") for row in rows})

    def _note_totals(self, report: RouterReport) -> None:
        now = self._clock()
        router = self._routers.setdefault(report.router, _Router(now))
        router.heard_s = now
        self._num_changes += 1
        for key_id, totals in report.totals.items():
            if router.totals.get(key_id) != totals:
                router.totals[key_id] = totals
                router.changes[key_id] = self._num_changes
        for name in [name for name, each in self._routers.items() if now - each.heard_s > ROUTER_SILENT_S]:
            del self._routers[name]

    def _refresh_keys(self) -> None:
        """Read the key file if it has changed; the last keys stay when it cannot be read."""
        error = self._key_file.error
        keys = self._key_file.read_changed()
        if self._key_file.error and self._key_file.error != error:
            logger.error("invalid keys, the last ones are kept: %s", self._key_file.error)
        if keys is None:
            return
        keys = [*self._environment_keys, *keys]
        lines = {key.key_id: key.line() for key in keys}
        self._names = {key.key_id: key.name for key in keys}
        revision = hashlib.blake2b("\n".join(lines.values()).encode(), digest_size=16).hexdigest()
        self._revisions[revision] = lines
        self._revisions.move_to_end(revision)
        if len(self._revisions) > KEPT_REVISIONS:
            self._revisions.popitem(last=False)

    def _key_changes(self, known: str, revision: str) -> tuple[list[str], list[str]]:
        """Return the lines that a router lacks, and the ids that it has too many."""
        if known == revision:
            return [], []
        old, new = self._revisions.get(known, {}), self._revisions[revision]
        added = [line for key_id, line in new.items() if old.get(key_id) != line]
        return added, [key_id for key_id in old if key_id not in new]
