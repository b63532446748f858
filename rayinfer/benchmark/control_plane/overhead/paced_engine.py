"""An engine without a model: every stream gets a token at its start, and then all get one at each tick of a clock."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass

from rayinfer.engine.loop.output_queue import MessageBox
from rayinfer.outputs import Credits, EngineStats, StepMessage, TokenDelta
from rayinfer.protocols import GenerationRequest, ModelDescription
from rayinfer.tokenization.tokenizer import Tokenizer

SIGN_OF_LIFE_S = 0.5
ENDLESS = 1 << 20  # tokens of a stream that was given no number
NUM_TOKEN_IDS = 1000
KV_BLOCKS_TOTAL = 1 << 20


class NeverStopped:
    """The controls of an engine that has nothing to stop."""

    async def pause(self) -> None:
        """Do nothing."""

    async def resume(self) -> None:
        """Do nothing."""

    async def sleep(self, level: int) -> None:
        """Do nothing."""

    async def wake(self) -> None:
        """Do nothing."""

    async def states(self) -> list[str]:
        """Return that it is running."""
        return ["running"]


@dataclass(kw_only=True, slots=True)
class _Stream:
    router_id: str
    position: int  # of its next token
    end: int  # the position behind its last token


class PacedEngine(NeverStopped):
    """An EngineClient whose steps cost nothing, so that only the layers in front of it are measured.

    As with a real engine a step makes one message for each router, with one token for every stream.
    """

    def __init__(
        self, description: ModelDescription, token_ids: Sequence[int], *, interval_s: float, max_running: int
    ) -> None:
        self.description = description
        self.num_tokens = 0  # that it has said
        self._token_ids = token_ids
        self._interval_s = interval_s
        self._max_running = max_running
        self._streams: dict[str, _Stream] = {}
        self._boxes: dict[str, MessageBox] = {}
        self._steps = itertools.count(1)
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
        box = self._boxes.setdefault(router_id, MessageBox())
        try:
            while True:
                try:
                    message = await box.take(SIGN_OF_LIFE_S)
                except TimeoutError:
                    message = self._message([])
                assert message is not None, "nobody closes the box"
                yield message
        finally:
            self._boxes.pop(router_id, None)
            await self.abort([name for name, stream in self._streams.items() if stream.router_id == router_id])

    async def _tick(self) -> None:
        """Keep to the clock: a tick that came late does not delay those after it."""
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
        for router_id, said in deltas.items():
            self._boxes.setdefault(router_id, MessageBox()).put(self._message(said))

    def _message(self, deltas: list[TokenDelta]) -> StepMessage:
        return StepMessage(epoch=1, step=next(self._steps), deltas=deltas, stats=self.stats)


def paced_description(name: str, tokenizer: Tokenizer) -> ModelDescription:
    """Describe a model that this tokenizer could belong to and that has room for everything."""
    return ModelDescription(
        name=name,
        max_model_len=1 << 17,
        vocab_size=tokenizer.vocab_size,
        created=1,
        kv_blocks_total=KV_BLOCKS_TOTAL,
        scores_prompts=False,
    )


def telling_token_ids(tokenizer: Tokenizer) -> list[int]:
    """List tokens that each decode to text on their own, so that each makes a chunk."""
    plain = (token_id for token_id in range(tokenizer.vocab_size) if token_id not in tokenizer.special_ids)
    telling = (token_id for token_id in plain if (text := tokenizer.decode([token_id])) and text.isascii())
    return list(itertools.islice(telling, NUM_TOKEN_IDS))
