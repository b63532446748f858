"""Slots of the adapters that running requests have: one slot for each adapter."""

from collections import Counter


class SlotAllocator:
    """Gives running requests the slot of their adapter; one that no running request has is reused, the oldest first."""

    def __init__(self, num_slots: int) -> None:
        self._num_slots = num_slots
        self._slots: dict[str, int] = {}  # by adapter, the least recently used first
        self._num_users: Counter[str] = Counter()  # running requests of each

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
        self._num_users[adapter] -= 1
        if not self._num_users[adapter]:
            del self._num_users[adapter]

    @property
    def running(self) -> list[str]:
        """The adapters of running requests, in alphabetical order."""
        return sorted(self._num_users)
