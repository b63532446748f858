"""ModelStreamInfer: requests of one stream side by side, answered by one response each or, as texts grow, by many."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.servers.generation.prompt_outputs import check_ended_well
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.calls import Call, Calls, decode_message
from rayinfer.servers.kserve.grpc.infer_messages import FINAL_RESPONSE, GrpcInferRequest, write_infer_result
from rayinfer.servers.kserve.inference import Inference, InferenceService, TextInference
from rayinfer.servers.kserve.repository import VERSION

MAX_REQUESTS_PER_STREAM = 64  # side by side; the next one is read when one of them ends
MAX_RESPONSES_AHEAD = 64  # a client that reads slowly holds up its own requests, not our memory
STALLED_S = 60.0  # how long a client may read nothing of its responses

# From a message to what it asks for; raises RequestError.
Prepare = Callable[[Any, Call], Awaitable[tuple[Inference, GrpcInferRequest]]]


class InferStream:
    """One stream; closing its responses ends all that it has begun."""

    def __init__(
        self,
        service: InferenceService,
        prepare: Prepare,
        calls: Calls,
        call: Call,
        *,
        stalled_s: float = STALLED_S,
    ) -> None:
        self._service = service
        self._prepare = prepare
        self._calls = calls
        self._call = call
        self._responses: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_RESPONSES_AHEAD)
        self._stalled_s = stalled_s
        self._sending: asyncio.Task[Any] | None = None
        self._has_room = asyncio.Semaphore(MAX_REQUESTS_PER_STREAM)

    async def responses(self, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yield encoded responses until all encoded messages are answered."""
        self._sending = asyncio.current_task()
        reading = asyncio.create_task(self._answer_all(messages))
        try:
            while (response := await self._responses.get()) is not None:
                yield response
            reading.result()
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _answer_all(self, messages: AsyncIterator[bytes]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                async for message in messages:
                    await self._has_room.acquire()
                    tasks.create_task(self._answer(message))
        except Exception:
            await self._put(None)
            raise
        await self._put(None)

    async def _answer(self, raw: bytes) -> None:
        message = pb.ModelInferRequest()
        try:
            message = decode_message(pb.ModelInferRequest, raw)
            inference, asked = await self._prepare(message, self._call)
            if isinstance(inference, TextInference) and inference.request.streams:
                await self._stream_text(inference, asked)
            else:
                result = await self._service.infer(self._call.request_context(), inference)
                response = write_infer_result(result, is_raw=asked.is_raw)
                response.parameters[FINAL_RESPONSE].bool_param = True
                await self._send(response)
        except Exception as error:
            response = pb.ModelInferResponse(model_name=message.model_name, id=message.id)
            refused = pb.ModelStreamInferResponse(error_message=self._calls.refused(error), infer_response=response)
            await self._put(refused.SerializeToString())
        finally:
            self._has_room.release()

    async def _stream_text(self, inference: TextInference, asked: GrpcInferRequest) -> None:
        request, has_ended = inference.request, False
        if len(request.texts) != 1:
            raise InvalidParameter("text_input must hold one text in a stream", "text_input")
        response = _text_response(inference, is_raw=asked.is_raw)
        opening = request.texts[0] if request.repeats_input else ""
        outputs = self._service.outputs(self._call.request_context(), request, inference.input_ns)
        async with aclosing(outputs):
            async for output in outputs:
                for completion in output.output.outputs:
                    check_ended_well(completion)
                    has_ended = completion.finish_reason is not None
                    if text := opening + completion.text:
                        _set_text(response, text.encode(errors="replace"), is_raw=asked.is_raw)
                        opening = ""
                        await self._send(response)
        if not has_ended:
            raise RequestFailed("the outputs ended before the text had")
        if asked.wants_final_response:
            final = pb.ModelInferResponse(model_name=response.model_name, model_version=VERSION, id=response.id)
            final.parameters[FINAL_RESPONSE].bool_param = True
            await self._send(final)

    async def _send(self, response: Any) -> None:
        await self._put(pb.ModelStreamInferResponse(infer_response=response).SerializeToString())

    async def _put(self, response: bytes | None) -> None:
        """Pass a response on to the client; one that reads nothing for long ends its stream."""
        if not self._responses.full():
            self._responses.put_nowait(response)
            return
        try:
            async with asyncio.timeout(self._stalled_s):
                await self._responses.put(response)
        except TimeoutError:
            assert self._sending is not None
            self._sending.cancel()


def _text_response(inference: TextInference, *, is_raw: bool) -> Any:
    """Make the response of one piece of text, to be filled again and again."""
    response = pb.ModelInferResponse(
        model_name=inference.request.generation.model.name, model_version=VERSION, id=inference.request.id
    )
    response.parameters[FINAL_RESPONSE].bool_param = False
    response.outputs.add(name="text_output", datatype="BYTES", shape=inference.shape)
    if is_raw:
        response.raw_output_contents.append(b"")
    return response


def _set_text(response: Any, text: bytes, *, is_raw: bool) -> None:
    if is_raw:
        response.raw_output_contents[0] = len(text).to_bytes(4, "little") + text
    else:
        response.outputs[0].contents.bytes_contents[:] = [text]
