"""Engine without a model: a stream gets its first token at once, and then one at each tick of a clock."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from rayinfer.engine.loop.output_queue import OutputQueue
from rayinfer.errors import InvalidParameter
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import Credits, EngineState, EngineStats, StepMessage, TokenDelta
from rayinfer.protocols import ControlAction, GenerationRequest, ModelDescription
from rayinfer.tokenization.tokenizer import Tokenizer

MESSAGE_INTERVAL_S = 0.5
ENDLESS = 1 << 20  # tokens of a stream without max_tokens
NUM_TOKEN_IDS = 1000
KV_BLOCKS_TOTAL = 1 << 20


class AlwaysRunning:
    """EngineControl without effect, of an engine without grammars."""

    async def control(self, action: ControlAction) -> list[str]:
        """Return that the engine is running."""
        return [EngineState.RUNNING]

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        """Refuse: there is no model, and so no grammar."""
        raise InvalidParameter("an engine without a model has no structured_outputs", "structured_outputs")


@dataclass(kw_only=True, slots=True)
class _Stream:
    router_id: str
    position: int  # of its next token
    end: int  # the position behind its last token


class PacedEngine(AlwaysRunning):
    """EngineClient whose steps cost nothing, so that only the layers in front of it are measured.

    As in a real engine a step makes one message for each router, with one token for every stream.
    """

    def __init__(
        self, description: ModelDescription, token_ids: Sequence[int], *, interval_s: float, max_running: int
    ) -> None:
        self.description = description
        self.num_tokens = 0  # sent
        self._token_ids = token_ids
        self._interval_s = interval_s
        self._max_running = max_running
        self._streams: dict[str, _Stream] = {}
        self._queues: dict[str, OutputQueue] = {}
        self._ticking: asyncio.Task[None] | None = None

    @property
    def stats(self) -> EngineStats:
        """Return its running requests and its capacity."""
        return EngineStats(
            num_running=len(self._streams),
            kv_blocks_total=self.description.kv_blocks_total,
            generation_tokens_total=self.num_tokens,
            credits=Credits(num_requests=self._max_running),
        )

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        """Accept requests and send their first tokens at once."""
        for request in requests:
            num_known = len(request.output_token_ids)
            end = max(num_known + 1, request.sampling_params.max_tokens or ENDLESS)
            self._streams[request.request_id] = _Stream(router_id=router_id, position=num_known, end=end)
        self._step([request.request_id for request in requests])
        if self._streams and (self._ticking is None or self._ticking.done()):
            self._ticking = asyncio.get_running_loop().create_task(self._tick())

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Drop requests; unknown ids are ignored."""
        for request_id in request_ids:
            self._streams.pop(request_id, None)

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        """Yield one message per step, and heartbeats."""
        queue = self._queues.setdefault(router_id, OutputQueue())
        try:
            while True:
                try:
                    message = await queue.get(MESSAGE_INTERVAL_S)
                except TimeoutError:
                    message = self._message([])
                assert message is not None, "the queue is never closed"
                yield message
        finally:
            self._queues.pop(router_id, None)
            await self.abort([name for name, stream in self._streams.items() if stream.router_id == router_id])

    async def _tick(self) -> None:
        """Step at every tick: a late tick does not delay those after it."""
        now = asyncio.get_running_loop().time
        latest_s = now()
        while self._streams:
            latest_s = max(latest_s + self._interval_s, now())
            await asyncio.sleep(latest_s - now())
            self._step(list(self._streams))

    def _step(self, request_ids: Iterable[str]) -> None:
        deltas: dict[str, list[TokenDelta]] = {}
        for request_id in request_ids:
            stream = self._streams[request_id]
            token_id = self._token_ids[stream.position % len(self._token_ids)]
            is_last = stream.position + 1 >= stream.end
            delta = TokenDelta(request_id, stream.position, [token_id], finish_reason="length" if is_last else None)
            deltas.setdefault(stream.router_id, []).append(delta)
            stream.position += 1
            self.num_tokens += 1
            if is_last:
                del self._streams[request_id]
        for router_id, sent in deltas.items():
            self._queues.setdefault(router_id, OutputQueue()).put(self._message(sent))

    def _message(self, deltas: list[TokenDelta]) -> StepMessage:
        return StepMessage(deltas=deltas, stats=self.stats)


def paced_description(name: str, tokenizer: Tokenizer) -> ModelDescription:
    """Describe a model with this tokenizer and an unlimited cache."""
    return ModelDescription(
        name=name,
        max_model_len=1 << 17,
        vocab_size=tokenizer.vocab_size,
        created=1,
        kv_blocks_total=KV_BLOCKS_TOTAL,
        scores_prompts=False,
    )


def printable_token_ids(tokenizer: Tokenizer) -> list[int]:
    """List tokens that decode to text one by one, so that each makes a chunk."""
    plain = (token_id for token_id in range(tokenizer.vocab_size) if token_id not in tokenizer.special_ids)
    printable = (token_id for token_id in plain if (text := tokenizer.decode([token_id])) and text.isascii())
    return list(itertools.islice(printable, NUM_TOKEN_IDS))
