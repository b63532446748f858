"""Engine client under a test's control."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.outputs import EngineStats, FinishReason, StepMessage, TokenDelta
from rayinfer.protocols import ControlAction, GenerationRequest, GetState, ModelDescription, Pause, Sleep


class FakeEngineClient:
    """Engine client that records its calls and sends scripted messages."""

    def __init__(self, *, max_model_len: int = 100) -> None:
        self.description = ModelDescription(
            name="engine's own name",
            max_model_len=max_model_len,
            vocab_size=256,
            created=1,
            kv_blocks_total=10,
            eos_token_ids=(3,),
        )
        self.submitted: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.router_ids: list[str] = []
        self.is_listened_to = False
        self.submit_error: Exception | None = None
        self.submit_may_arrive = asyncio.Event()
        self.submit_may_arrive.set()
        self.abort_may_return = asyncio.Event()
        self.abort_may_return.set()
        self.state = "running"
        self.controls: list[ControlAction] = []
        self.control_error: Exception | None = None
        self.control_may_return = asyncio.Event()
        self.control_may_return.set()
        self.compiled: list[StructuredOutputsParams] = []
        self.grammar_error: Exception | None = None
        self.grammar_may_compile = asyncio.Event()
        self.grammar_may_compile.set()
        self._num_said: dict[str, int] = {}
        self._messages: asyncio.Queue[StepMessage | Exception] = asyncio.Queue()

    @property
    def has_unread(self) -> bool:
        """Whether scripted messages wait to be read."""
        return not self._messages.empty()

    async def submit(self, requests: Sequence[GenerationRequest], router_id: str) -> None:
        if self.submit_error is not None:
            raise self.submit_error
        await self.submit_may_arrive.wait()
        self.submitted += requests
        self._num_said.update((request.request_id, len(request.output_token_ids)) for request in requests)
        self.router_ids.append(router_id)

    async def abort(self, request_ids: Sequence[str]) -> None:
        await self.abort_may_return.wait()
        self.aborted += request_ids

    async def compile_grammar(self, spec: StructuredOutputsParams, router_id: str) -> None:
        self.compiled.append(spec)
        await self.grammar_may_compile.wait()
        if self.grammar_error is not None:
            raise self.grammar_error

    async def outputs(self, router_id: str) -> AsyncIterator[StepMessage]:
        self.is_listened_to = True
        try:
            while True:
                message = await self._messages.get()
                if isinstance(message, Exception):
                    raise message
                yield message
        finally:
            self.is_listened_to = False

    async def control(self, action: ControlAction) -> list[str]:
        if isinstance(action, GetState):
            return [self.state]
        await self.control_may_return.wait()
        if self.control_error is not None:
            raise self.control_error
        self.controls.append(action)
        self.state = {Pause: "paused", Sleep: "asleep"}.get(type(action), "running")
        return [self.state]

    @property
    def submitted_ids(self) -> list[str]:
        return [request.request_id for request in self.submitted]

    def delta(
        self,
        request_id: str,
        token_ids: Sequence[int] = (),
        finish_reason: FinishReason | None = None,
        **fields: Any,
    ) -> TokenDelta:
        """Make the request's next delta."""
        start = self._num_said.get(request_id, 0)
        self._num_said[request_id] = start + len(token_ids)
        return TokenDelta(request_id, start, list(token_ids), finish_reason=finish_reason, **fields)

    def say(self, *deltas: TokenDelta, stats: EngineStats | None = None, **fields: Any) -> None:
        """Send one step's message."""
        stats = stats or EngineStats()
        self._messages.put_nowait(StepMessage(deltas=list(deltas), stats=stats, **fields))

    def die(self, error: Exception) -> None:
        """End the outputs with an error."""
        self._messages.put_nowait(error)
