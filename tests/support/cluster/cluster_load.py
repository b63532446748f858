"""Clients of a cluster: streams through the proxies of several nodes, asked again elsewhere when a connection breaks.

A stream ends with the router, the proxy or the node that carries it: any client of a balanced service asks again then.
Such streams are counted apart; nothing else may break one.
"""

import asyncio
import contextlib
import itertools
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence

import httpx

from support.faults.fault_load import Answer, ask

SILENT_S = 30.0  # without a piece, after which a client asks again: no packet says that a machine is gone
ANSWER_S = 180.0
MAX_ATTEMPTS = 60
PAUSE_S = 0.5


class ClusterLoad:
    """Streams that follow each other, each client through one node after the other, until the block ends."""

    def __init__(
        self, urls: Sequence[str], expected: Mapping[int | None, Answer], *, num_streams: int, asks_again: bool = True
    ) -> None:
        self.verdicts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.longest_gap_s = 0.0
        self._urls = urls
        self._expected = expected
        self._numbers = itertools.cycle(sorted(each for each in expected if each is not None))
        self._num_streams = num_streams
        self._asks_again = asks_again
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "ClusterLoad":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    @property
    def num_answers(self) -> int:
        """Return how many requests have ended."""
        return self.verdicts.total()

    def report(self) -> str:
        """Return the counts in one line."""
        counts = ", ".join(f"{count} {name}" for name, count in sorted(self.verdicts.items()))
        return f"{counts}; longest gap {self.longest_gap_s:.1f} s" + "".join(
            f"\n  {each}" for each in self.failures[:5]
        )

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
        timeout = httpx.Timeout(SILENT_S, connect=3.0)
        async with contextlib.AsyncExitStack() as stack:
            clients = {
                url: await stack.enter_async_context(
                    httpx.AsyncClient(base_url=url, timeout=timeout, trust_env=False, limits=limits)
                )
                for url in self._urls
            }
            await asyncio.gather(*(self._stream_on(clients, index) for index in range(self._num_streams)))

    async def _stream_on(self, clients: Mapping[str, httpx.AsyncClient], index: int) -> None:
        for turn in itertools.count(index):
            if self._is_over.is_set():
                return
            number = next(self._numbers)
            self.verdicts[await self._answer(clients, number, turn)] += 1

    async def _answer(self, clients: Mapping[str, httpx.AsyncClient], number: int, turn: int) -> str:
        for attempt in range(MAX_ATTEMPTS if self._asks_again else 1):
            url = self._urls[(turn + attempt) % len(self._urls)]
            answer = Answer(self._expected[number].body | {"stream": True}, number)
            await ask(clients[url], answer, within_s=ANSWER_S)
            verdict = answer.verdict(self._expected[number])
            if verdict == "exact":
                self.longest_gap_s = max(self.longest_gap_s, answer.longest_gap_s)
                return "exact" if attempt == 0 else "asked again"
            self.failures.append(f"{time.strftime('%X')} {url} {verdict}: {answer.status} {answer.error!r:.200}")
            if verdict in ("wrong", "hung"):
                return verdict
            await asyncio.sleep(PAUSE_S)
        return "failed"
