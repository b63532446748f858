"""Slots of the adapters that running requests have: one slot for each adapter."""

from collections import Counter


class SlotAllocator:
    """Gives running requests the slot of their adapter; one that no running request has is reused, the oldest first.

    With `max_bytes` the adapters in slots have no more bytes than that together: those of running requests stay, others
    leave, and a request that still does not fit waits. An adapter that would not fit alone is refused when it is read.
    """

    def __init__(self, num_slots: int, max_bytes: int | None = None) -> None:
        self._num_slots, self._max_bytes = num_slots, max_bytes
        self._slots: dict[str, int] = {}  # by adapter, the least recently used first
        self._free_slots = list(range(num_slots))[::-1]
        self._has_emptied = False  # since they were taken
        self._sizes: dict[str, int] = {}  # bytes of adapters in host memory, in slots and of unfinished requests
        self.num_bytes = 0  # of the adapters in slots
        self._num_users: Counter[str] = Counter()  # running requests of each
        self._num_unfinished: Counter[str] = Counter()  # requests of each that run or wait

    @property
    def num_slots(self) -> int:
        """Adapters that running requests may have together."""
        return self._num_slots

    def record_size(self, adapter: str, num_bytes: int) -> None:
        """Record the bytes that an adapter needs, before its requests arrive."""
        self._sizes[adapter] = num_bytes

    def forget_size(self, adapter: str) -> None:
        """Forget an adapter that has left host memory, unless it is in a slot."""
        if adapter not in self._slots:
            self._sizes.pop(adapter, None)

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
        if adapter is None or adapter in self._slots:
            return True
        if len(self._num_users) == self._num_slots:
            return False
        return self._max_bytes is None or self._bytes_in_use() + self._sizes[adapter] <= self._max_bytes

    def allocate(self, adapter: str | None) -> int | None:
        """Return the adapter's slot for one more running request; None for a request without an adapter."""
        if adapter is None:
            return None
        slot = self._slots.pop(adapter, None)
        if slot is None:
            num_bytes = self._sizes.get(adapter, 0)
            while not self._free_slots or (
                self._max_bytes is not None and self.num_bytes + num_bytes > self._max_bytes
            ):
                self._empty_oldest()
            slot = self._free_slots.pop()
            self.num_bytes += num_bytes
        self._slots[adapter] = slot
        self._num_users[adapter] += 1
        return slot

    def take_emptied_slots(self) -> tuple[int, ...]:
        """Return the slots that have no adapter any more, if there are new ones."""
        if not self._has_emptied:
            return ()
        self._has_emptied = False
        return tuple(self._free_slots)

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

    def resend_emptied_slots(self) -> None:
        """Have those that have no adapter returned again: a step that was to empty some was interrupted."""
        self._has_emptied = True

    def forget_slots(self) -> None:
        """Take every slot, now that no request runs: the model is freed with all that they hold."""
        assert not self._num_users, "adapters of running requests"
        while self._slots:
            self._empty_oldest()

    def _bytes_in_use(self) -> int:
        return sum(self._sizes[each] for each in self._num_users)

    def _empty_oldest(self) -> None:
        """Take the slot of the adapter that no running request has for longest."""
        unused = next(each for each in self._slots if each not in self._num_users)
        self._free_slots.append(self._slots.pop(unused))
        self._has_emptied = True
        self.num_bytes -= self._sizes.get(unused, 0)
        if unused not in self._num_unfinished:
            self._sizes.pop(unused, None)


def _remove_one(counts: Counter[str], adapter: str) -> None:
    counts[adapter] -= 1
    if not counts[adapter]:
        del counts[adapter]
