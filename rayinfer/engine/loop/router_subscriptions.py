"""Subscriptions of routers to one engine's outputs, and the credits of each router."""

import threading
import time
from dataclasses import dataclass, field

from rayinfer.credits import credits_of_each
from rayinfer.engine.loop.output_queue import OutputQueue
from rayinfer.protocols import ModelDescription


@dataclass(slots=True, eq=False)
class RouterSubscription:
    """One opening of `outputs`; a router that reconnects under its old id has another one."""

    outputs: OutputQueue = field(default_factory=OutputQueue)
    request_ids: set[str] = field(default_factory=set)  # used by the engine's thread alone
    since: float = field(default_factory=time.monotonic)
    is_read: bool = False


class RouterSubscriptions:
    """Subscriptions by router, changed from any thread; the routers that read share the engine's credits."""

    def __init__(self, description: ModelDescription, timeout_s: float) -> None:
        """Drop a router that has sent requests and does not read its outputs within `timeout_s`."""
        self.credits = credits_of_each(description, 1)  # of each router that reads
        self._description = description
        self._timeout_s = timeout_s
        self._subscriptions: dict[str, RouterSubscription] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def subscribe(self, router_id: str, *, is_read: bool = False) -> RouterSubscription:
        """Find or create a router's subscription; one that is made after `close` is closed."""
        with self._lock:
            subscription = self._subscriptions.setdefault(router_id, RouterSubscription())
            subscription.is_read |= is_read
            self._split_credits()
            if self._is_closed:
                subscription.outputs.close()
            return subscription

    def unsubscribe(self, router_id: str, subscription: RouterSubscription) -> None:
        """Drop a router that reads no more."""
        with self._lock:
            if self._subscriptions.get(router_id) is subscription:
                del self._subscriptions[router_id]
            self._split_credits()

    def current(self) -> list[RouterSubscription]:
        """Return all current subscriptions."""
        with self._lock:
            return list(self._subscriptions.values())

    def pop_unread(self) -> list[RouterSubscription]:
        """Drop the subscriptions that were not read in time, and return them."""
        latest = time.monotonic() - self._timeout_s
        with self._lock:
            unread = [name for name, each in self._subscriptions.items() if not each.is_read and each.since < latest]
            return [self._subscriptions.pop(name) for name in unread]

    def close(self) -> None:
        """End the messages of all routers, and of those that connect later."""
        with self._lock:
            self._is_closed = True
            for subscription in self._subscriptions.values():
                subscription.outputs.close()

    def _split_credits(self) -> None:
        num_readers = sum(subscription.is_read for subscription in self._subscriptions.values())
        self.credits = credits_of_each(self._description, max(1, num_readers))
