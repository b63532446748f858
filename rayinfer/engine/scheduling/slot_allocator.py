"""Slots of the adapters that running requests have: one slot for each adapter."""

from collections import Counter


class SlotAllocator:
    """Gives running requests the slot of their adapter; one that no running request has is reused, the oldest first."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._slots: dict[str, int] = {}  # by adapter, the least recently used first
        self._num_users: Counter[str] = Counter()  # running requests of each
        self._num_unfinished: Counter[str] = Counter()  # requests of each that run or wait

    @property
    def num_slots(self) -> int:
        """Adapters that running requests may have together."""
        return self._num_slots

    def record_arrival(self, adapter: str | None) -> None:
        """Record a request that begins to wait for its first slot."""
        if adapter is not None:
            self._num_unfinished[adapter] += 1

    def record_end(self, adapter: str | None) -> None:
        """Record that a request has ended, and has no slot any more."""
        if adapter is not None:
            _remove_one(self._num_unfinished, adapter)

    def has_room_for(self, adapter: str | None) -> bool:
        """Return whether a request with this adapter may run."""
        if adapter is None or adapter in self._slots or len(self._slots) < self._num_slots:
            return True
        return len(self._num_users) < self._num_slots

    def allocate(self, adapter: str | None) -> int | None:
        """Return the adapter's slot for one more running request; None for a request without an adapter."""
        if adapter is None:
            return None
        slot = self._slots.pop(adapter, None)
        if slot is None:
            slot = len(self._slots)
            if slot == self._num_slots:
                unused = next(each for each in self._slots if each not in self._num_users)
                slot = self._slots.pop(unused)
        self._slots[adapter] = slot
        self._num_users[adapter] += 1
        return slot

    def free(self, adapter: str | None) -> None:
        """Take back what `allocate` gave a request; its adapter stays in the slot until another needs it."""
        if adapter is None:
            return
        _remove_one(self._num_users, adapter)

    @property
    def running(self) -> list[str]:
        """The adapters of running requests, in alphabetical order."""
        return sorted(self._num_users)

    @property
    def waiting(self) -> list[str]:
        """The adapters of waiting requests, in alphabetical order."""
        unfinished, running = self._num_unfinished, self._num_users
        return sorted(each for each, count in unfinished.items() if count > running[each])

    @property
    def unfinished(self) -> frozenset[str]:
        """The adapters of all requests that run or wait."""
        return frozenset(self._num_unfinished)


def _remove_one(counts: Counter[str], adapter: str) -> None:
    counts[adapter] -= 1
    if not counts[adapter]:
        del counts[adapter]
