"""Messages between routers and the owner of their shared state."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from rayinfer.access.usage import UsageRow


class KeyTotals(NamedTuple):
    """Counts of a router for a key since the router's start, and what the key's requests that run there hold.

    Totals may be sent again and be late without harm, and an owner that comes back needs no earlier ones.
    """

    requests: int = 0
    tokens: int = 0
    num_running: int = 0  # sequences
    reserved_tokens: int = 0  # for answers that are not generated yet


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterReport:
    """Report of a router, a few times a second."""

    router: str
    sequence: int  # of the usage; the same until the owner has answered
    usage: Sequence[UsageRow] = ()
    last_used_s: Mapping[str, float] = field(default_factory=dict)  # by key id: since 1970, of keys used meanwhile
    totals: Mapping[str, KeyTotals] = field(default_factory=dict)  # by key id: those that changed, or all
    owner: str = ""  # the owner that `seen` is about
    seen: int = 0  # latest change of other routers' totals that the router has
    keys_revision: str = ""  # of the keys that it has


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnerUpdate:
    """The owner's answer."""

    owner: str  # another name after each start
    seen: int
    keys_revision: str
    has_keys: bool = True  # False where the owner has found no valid key file since its start
    key_error: str = ""  # what is wrong with the key file, while the last keys apply
    has_all_keys: bool = False  # whether the added ones are all there are
    added_keys: Sequence[str] = ()  # lines of the key file; those with a known id replace theirs
    removed_keys: Sequence[str] = ()  # ids
    totals: Mapping[str, Mapping[str, KeyTotals]] = field(default_factory=dict)  # of other routers, if changed
    routers: Sequence[str] = ()  # that the owner knows to be alive
    output_tokens: Mapping[str, int] = field(default_factory=dict)  # of today, of the keys with usage in the report
    day: str = ""


class NamedUsage(NamedTuple):
    """Usage, and the names of its keys by id."""

    rows: Sequence[UsageRow]
    names: Mapping[str, str]


class SharedState(Protocol):
    """The owner of shared state, as a router calls it."""

    async def sync(self, report: RouterReport) -> OwnerUpdate:
        """Take a router's report and return what it does not know yet."""
        ...

    async def usage(self, first_day: str, key_id: str | None) -> NamedUsage:
        """Return the usage since a day, of one key or of all."""
        ...
