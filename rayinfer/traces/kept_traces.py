"""The traces of a router's requests, each kept for ten minutes after its latest event."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from rayinfer.outputs import FinishReason, TraceEvent
from rayinfer.traces.request_trace import RequestTrace

KEEP_S = 600.0
MAX_REQUESTS = 10_000
MAX_SIZE = 100_000  # events and prompts of all requests together, a few hundred bytes each
MAX_NAMESAKES = 16


@dataclass(kw_only=True, slots=True, eq=False)
class KeptTrace:
    """One client request's trace under its public names."""

    name: str  # the client's, or ours if it gave none
    answer_id: str  # what the answer says: the name behind a prefix
    model: str
    tenant: str  # "" for none; other tenants do not find the trace
    request_ids: Sequence[str]  # inside the service, by prompt
    trace: RequestTrace = field(default_factory=RequestTrace)
    running: set[tuple[int, int]] = field(default_factory=set)  # prompt and choice
    latest_event: float = 0.0
    counted_size: int = 0  # as far as the bound on all traces knows


class KeptTraces:
    """Store bounded in number and size: above the bounds, the traces quiet for longest are dropped.

    Names are the clients' own choice, so several requests may share one: `find` returns all of them. Names of
    different tenants have nothing to do with each other.
    """

    def __init__(
        self,
        *,
        keep_s: float = KEEP_S,
        max_requests: int = MAX_REQUESTS,
        max_size: int = MAX_SIZE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_s = keep_s
        self._max_requests = max_requests
        self._max_size = max_size
        self._clock = clock
        self._size = 0
        self._by_age: OrderedDict[KeptTrace, None] = OrderedDict()  # by their latest events
        self._by_name: dict[tuple[str, str], list[KeptTrace]] = {}  # by tenant and name
        self._by_request_id: dict[str, tuple[KeptTrace, int]] = {}  # with the number of the prompt

    def open(
        self,
        *,
        name: str,
        answer_id: str,
        model: str,
        request_ids: Sequence[str],
        received_s: float,
        tenant: str = "",
    ) -> None:
        """Begin the trace of a client request that becomes one request per prompt inside the service."""
        kept = KeptTrace(name=name, answer_id=answer_id, model=model, tenant=tenant, request_ids=request_ids)
        namesakes = self._by_name.setdefault((tenant, name), [])
        namesakes.append(kept)
        self._by_request_id.update((request_id, (kept, prompt)) for prompt, request_id in enumerate(request_ids))
        kept.trace.record("received", time_s=received_s, num_prompts=len(request_ids))
        self._note_change(kept)
        if len(namesakes) > MAX_NAMESAKES:
            self._forget(namesakes[0])

    def dispatched(self, request_id: str, choices: Iterable[int], **details: int | float | str) -> None:
        """Note that these choices of a prompt are on their way to an engine, for the first time or again, and why."""
        if (found := self._by_request_id.get(request_id)) is not None:
            kept, prompt = found
            for choice in choices:
                kept.running.add((prompt, choice))
                kept.trace.record("dispatched", time_s=None, prompt=prompt, choice=choice, **details)
            self._note_change(kept)

    def migrated(self, request_id: str, *, engine: str, reason: str) -> None:
        """Note that a prompt's open choices have lost their engine and go on elsewhere."""
        if (found := self._by_request_id.get(request_id)) is not None:
            kept, prompt = found
            kept.trace.record("migrated", prompt=prompt, engine=engine, reason=reason)
            self._note_change(kept)

    def finished(self, request_id: str, choice: int, reason: FinishReason, output_tokens: int) -> None:
        """Note how a choice ended for its client, and with how many tokens."""
        if (found := self._by_request_id.get(request_id)) is not None:
            kept, prompt = found
            kept.running.discard((prompt, choice))
            kept.trace.record_end(reason, output_tokens=output_tokens, prompt=prompt, choice=choice)
            self._note_change(kept)

    def take_over(self, request_id: str, choice: int, events: Iterable[TraceEvent]) -> None:
        """Add an engine's events of a choice, which may come after the client has its answer."""
        if (found := self._by_request_id.get(request_id)) is not None:
            kept, prompt = found
            kept.trace.take_over(events, prompt=prompt, choice=choice)
            self._note_change(kept)

    def find(self, wanted: str, tenant: str = "") -> list[KeptTrace]:
        """Look a tenant's request up by its answer's id or by its name; the latest namesake first."""
        self._forget_old()
        bare = wanted.partition("-")[2]
        by_answer = [kept for kept in self._by_name.get((tenant, bare), ()) if kept.answer_id == wanted]
        return [*self._by_name.get((tenant, wanted), ()), *by_answer][::-1]

    def _note_change(self, kept: KeptTrace) -> None:
        size = len(kept.trace) + len(kept.request_ids)  # a refusal of a thousand prompts has one event
        self._size += size - kept.counted_size
        kept.counted_size = size
        kept.latest_event = self._clock()
        self._by_age[kept] = None
        self._by_age.move_to_end(kept)
        self._forget_old()

    def _forget_old(self) -> None:
        while self._by_age:
            oldest = next(iter(self._by_age))
            if len(self._by_age) <= self._max_requests and self._size <= self._max_size:
                if self._clock() - oldest.latest_event <= self._keep_s:
                    return
                if oldest.running:  # a long answer: its last events are still to come
                    oldest.latest_event = self._clock()
                    self._by_age.move_to_end(oldest)
                    continue
            self._forget(oldest)

    def _forget(self, kept: KeptTrace) -> None:
        del self._by_age[kept]
        self._size -= kept.counted_size
        for request_id in kept.request_ids:
            del self._by_request_id[request_id]
        namesakes = self._by_name[kept.tenant, kept.name]
        namesakes.remove(kept)
        if not namesakes:
            del self._by_name[kept.tenant, kept.name]
