"""Store of request traces; each stays for ten minutes after its latest event."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from rayinfer.outputs import FinishReason, TraceEvent
from rayinfer.traces.request_trace import RequestTrace

KEEP_S = 600.0
MAX_REQUESTS = 10_000
MAX_SIZE = 100_000  # events and prompts of all requests together, a few hundred bytes each
MAX_SAME_NAME = 16
MAX_PROMPT_TOKENS = 512  # of a prompt that is kept


@dataclass(kw_only=True, slots=True, eq=False)
class StoredTrace:
    """One client request's trace under its public names."""

    name: str  # given by the client, else generated
    response_id: str  # the `id` of the response: a prefix and the name
    model: str
    tenant: str  # "" for none; other tenants do not find the trace
    prompts: Mapping[str, int]  # numbers of the prompts by their internal ids
    prompt_token_ids: Sequence[int] = ()  # the first ones of the first prompt, where the store keeps them
    trace: RequestTrace = field(default_factory=RequestTrace)
    running: set[tuple[int, int]] = field(default_factory=set)  # prompt and choice
    latest_event: float = 0.0
    counted_size: int = 0  # its part of the store's size


class TraceStore:
    """Store of traces, bounded in number and size; above the bounds, those with the oldest latest event are dropped.

    Clients choose the names, so several requests may share one: `find` returns all of them. Each tenant has a
    namespace of its own.
    """

    def __init__(
        self,
        *,
        keep_s: float = KEEP_S,
        max_requests: int = MAX_REQUESTS,
        max_size: int = MAX_SIZE,
        keeps_prompts: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._keep_s = keep_s
        self._max_requests = max_requests
        self._max_size = max_size
        self._keeps_prompts = keeps_prompts
        self._clock = clock
        self._size = 0
        self._by_age: OrderedDict[StoredTrace, None] = OrderedDict()  # by their latest events
        self._by_name: dict[tuple[str, str], list[StoredTrace]] = {}  # by tenant and name
        self._by_request_id: dict[str, StoredTrace] = {}

    def open(
        self,
        *,
        name: str,
        response_id: str,
        model: str,
        request_ids: Sequence[str],
        received_s: float,
        tenant: str = "",
        prompt_token_ids: Sequence[int] = (),
        adapter: str | None = None,
    ) -> None:
        """Begin the trace of a client request, which has one internal request for each prompt.

        Its first event has the name and digest of its adapter.
        """
        prompts = {request_id: prompt for prompt, request_id in enumerate(request_ids)}
        stored = StoredTrace(name=name, response_id=response_id, model=model, tenant=tenant, prompts=prompts)
        if self._keeps_prompts:
            stored.prompt_token_ids = tuple(prompt_token_ids[:MAX_PROMPT_TOKENS])
        same_name = self._by_name.setdefault((tenant, name), [])
        same_name.append(stored)
        self._by_request_id.update(dict.fromkeys(prompts, stored))
        with_adapter = {} if adapter is None else {"adapter": adapter}
        stored.trace.record("received", time_s=received_s, num_prompts=len(request_ids), **with_adapter)
        self._note_change(stored)
        if len(same_name) > MAX_SAME_NAME:
            self._forget(same_name[0])

    def dispatched(
        self, request_id: str, choices: Iterable[int], *, time_s: float | None = None, **details: int | float | str
    ) -> None:
        """Record that these choices of a prompt are sent to an engine, or were at `time_s`, with the reason."""
        if (stored := self._by_request_id.get(request_id)) is not None:
            prompt = stored.prompts[request_id]
            for choice in choices:
                stored.running.add((prompt, choice))
                stored.trace.record("dispatched", time_s=time_s, prompt=prompt, choice=choice, **details)
            self._note_change(stored)

    def migrated(
        self, request_id: str, *, engine: str, reason: str, output_tokens: int, first_token_s: float | None = None
    ) -> None:
        """Record that a prompt's open choices migrate to another engine, with the tokens that they have by then.

        `first_token_s` is the time from the prompt's arrival to its first token: a lost engine's events are lost too.
        """
        if (stored := self._by_request_id.get(request_id)) is not None:
            prompt = stored.prompts[request_id]
            first_token = {} if first_token_s is None else {"first_token_s": round(first_token_s, 6)}
            stored.trace.record(
                "migrated",
                time_s=None,
                prompt=prompt,
                engine=engine,
                reason=reason,
                output_tokens=output_tokens,
                **first_token,
            )
            self._note_change(stored)

    def finished(self, request_id: str, choice: int, reason: FinishReason, output_tokens: int) -> None:
        """Record the end of a choice, with its number of output tokens."""
        if (stored := self._by_request_id.get(request_id)) is not None:
            prompt = stored.prompts[request_id]
            stored.running.discard((prompt, choice))
            stored.trace.record_end(reason, output_tokens=output_tokens, prompt=prompt, choice=choice)
            self._note_change(stored)

    def add_engine_events(self, request_id: str, choice: int, events: Iterable[TraceEvent]) -> None:
        """Add an engine's events of a choice; they may arrive after the client's response."""
        if (stored := self._by_request_id.get(request_id)) is not None:
            prompt = stored.prompts[request_id]
            stored.trace.add_engine_events(events, prompt=prompt, choice=choice)
            self._note_change(stored)

    def find(self, name: str, tenant: str = "") -> list[StoredTrace]:
        """Find a tenant's requests by the id of the response or by name; the latest first."""
        self._forget_old()
        client_name = name.partition("-")[2]
        by_response_id = [
            stored for stored in self._by_name.get((tenant, client_name), ()) if stored.response_id == name
        ]
        return [*self._by_name.get((tenant, name), ()), *by_response_id][::-1]

    def recent(self, tenant: str | None, limit: int) -> list[StoredTrace]:
        """Return the requests of a tenant, or with None of all, that changed last; the latest first."""
        self._forget_old()
        own = (stored for stored in reversed(self._by_age) if tenant is None or stored.tenant == tenant)
        return list(islice(own, limit))

    def find_of_all_tenants(self, name: str) -> list[StoredTrace]:
        """Find the requests of all tenants by the id of the response or by name; looks through all names."""
        return [stored for tenant in {tenant for tenant, _ in self._by_name} for stored in self.find(name, tenant)]

    def dispatched_s(self, name: str, tenant: str, response_id: str) -> float | None:
        """Return when the first part of a request was sent to an engine, in seconds since 1970."""
        for stored in reversed(self._by_name.get((tenant, name), ())):
            if stored.response_id == response_id:
                times = [event.time_s for event in stored.trace.in_order() if event.name == "dispatched"]
                return min(times, default=None)
        return None

    def _note_change(self, stored: StoredTrace) -> None:
        # A rejected request of a thousand prompts has one event; ten tokens take about as much as one.
        size = len(stored.trace) + len(stored.prompts) + len(stored.prompt_token_ids) // 10
        self._size += size - stored.counted_size
        stored.counted_size = size
        stored.latest_event = self._clock()
        self._by_age[stored] = None
        self._by_age.move_to_end(stored)
        self._forget_old()

    def _forget_old(self) -> None:
        while self._by_age:
            oldest = next(iter(self._by_age))
            if len(self._by_age) <= self._max_requests and self._size <= self._max_size:
                if self._clock() - oldest.latest_event <= self._keep_s:
                    return
                if oldest.running:  # a long generation: its last events have yet to arrive
                    oldest.latest_event = self._clock()
                    self._by_age.move_to_end(oldest)
                    continue
            self._forget(oldest)

    def _forget(self, stored: StoredTrace) -> None:
        del self._by_age[stored]
        self._size -= stored.counted_size
        for request_id in stored.prompts:
            del self._by_request_id[request_id]
        same_name = self._by_name[stored.tenant, stored.name]
        same_name.remove(stored)
        if not same_name:
            del self._by_name[stored.tenant, stored.name]
