"""An engine client that computes: every token is a function of the prompt and its position, one step at a time."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from rayinfer.errors import EngineDead, InvalidParameter
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import NO_BOUNDS, Credits, EngineStats, StepMessage, TokenDelta
from rayinfer.protocols import ControlAction, GenerationRequest, ModelDescription


def expected_token(prompt: Sequence[int], position: int) -> int:
    """The token at a position of the answer to a prompt."""
    return (sum(prompt) * 31 + position * 7) % 26 + ord("a")


class CountingEngine:
    """Engine that steps on command, and dies when killed, also within a call."""

    def __init__(self, credits: Credits = NO_BOUNDS) -> None:
        self.credits = credits
        self.running: dict[str, tuple[GenerationRequest, int]] = {}  # with the tokens that are known
        self.is_dead = False
        self._messages: asyncio.Queue[StepMessage | EngineDead] = asyncio.Queue()

    @property
    def description(self) -> ModelDescription:
        return ModelDescription(
            name="counting", max_model_len=1000, vocab_size=256, created=1, kv_blocks_total=10, eos_token_ids=(3,)
        )

    def step(self, num_tokens: int = 1) -> None:
        """Let every request gain tokens, or end."""
        deltas = []
        for request_id, (request, start) in list(self.running.items()):
            limit = request.sampling_params.max_tokens
            assert limit is not None
            end = min(start + num_tokens, limit)
            tokens = [expected_token(request.prompt_token_ids, position) for position in range(start, end)]
            deltas.append(TokenDelta(request_id, start, tokens, finish_reason="length" if end == limit else None))
            self.running[request_id] = (request, end)
            if end == limit:
                del self.running[request_id]
        self._messages.put_nowait(StepMessage(deltas=deltas, stats=EngineStats(credits=self.credits)))

    def kill(self) -> None:
        """End the process."""
        self.is_dead = True
        self.running.clear()
        self._messages.put_nowait(EngineDead("killed"))

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        await asyncio.sleep(0)
        self._check()
        for request in requests:
            assert request.request_id not in self.running, "the same request twice at once"
            self.running[request.request_id] = (request, len(request.output_token_ids))

    async def abort(self, request_ids: Sequence[str]) -> None:
        await asyncio.sleep(0)
        self._check()
        for request_id in request_ids:
            self.running.pop(request_id, None)

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        try:
            while True:
                message = await self._messages.get()
                if isinstance(message, EngineDead):
                    raise message
                yield message
        finally:
            self.running.clear()  # as the real one does when a router's line is closed

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        raise InvalidParameter("no grammars here", "structured_outputs")

    async def control(self, action: ControlAction) -> list[str]:
        return ["running"]

    def _check(self) -> None:
        if self.is_dead:
            raise EngineDead("killed")
