"""The routers that listen to one engine, and the credits of each."""

import threading
import time
from dataclasses import dataclass, field

from rayinfer.credits import credits_of_each
from rayinfer.engine.loop.output_queue import MessageBox
from rayinfer.protocols import ModelDescription


@dataclass(slots=True, eq=False)
class RouterLine:
    """One opening of `outputs`; a router that comes back under its old id is another one."""

    box: MessageBox = field(default_factory=MessageBox)
    request_ids: set[str] = field(default_factory=set)  # the engine's thread's own
    since: float = field(default_factory=time.monotonic)
    listens: bool = False


class RouterLines:
    """Opens and closes lines from any thread, and shares the engine's credits among the routers that listen."""

    def __init__(self, description: ModelDescription, listen_within_s: float) -> None:
        """Give up on a router that has sent requests and does not listen within so many seconds."""
        self.credits = credits_of_each(description, 1)  # of each router that listens
        self._description = description
        self._listen_within_s = listen_within_s
        self._lines: dict[str, RouterLine] = {}
        self._is_closed = False
        self._lock = threading.Lock()

    def open(self, router_id: str, *, listens: bool = False) -> RouterLine:
        """Find a router's line, or begin one; nothing comes by a line that is opened after `close`."""
        with self._lock:
            line = self._lines.setdefault(router_id, RouterLine())
            line.listens |= listens
            self._share_credits()
            if self._is_closed:
                line.box.close()
            return line

    def leave(self, router_id: str, line: RouterLine) -> None:
        """Forget a router that listens no more."""
        with self._lock:
            if self._lines.get(router_id) is line:
                del self._lines[router_id]
            self._share_credits()

    def in_use(self) -> list[RouterLine]:
        """All lines of the moment."""
        with self._lock:
            return list(self._lines.values())

    def take_unheard(self) -> list[RouterLine]:
        """Forget the routers that have not listened in time, and return their lines."""
        latest = time.monotonic() - self._listen_within_s
        with self._lock:
            gone = [name for name, line in self._lines.items() if not line.listens and line.since < latest]
            return [self._lines.pop(name) for name in gone]

    def close(self) -> None:
        """End the messages of all routers, and of those that connect later."""
        with self._lock:
            self._is_closed = True
            for line in self._lines.values():
                line.box.close()

    def _share_credits(self) -> None:
        num_listening = sum(line.listens for line in self._lines.values())
        self.credits = credits_of_each(self._description, max(1, num_listening))
