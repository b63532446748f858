"""ModelStreamInfer: requests of one stream side by side, answered by one response each or, as texts grow, by many."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

import grpc

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.servers.generation.prompt_outputs import check_ended_well
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.calls import Call, Calls
from rayinfer.servers.kserve.grpc.infer_messages import FINAL_RESPONSE, GrpcInferRequest, write_infer_result
from rayinfer.servers.kserve.inference import Inference, InferenceService, TextInference
from rayinfer.servers.kserve.repository import VERSION

MAX_REQUESTS_PER_STREAM = 64  # side by side; the next one is read when one of them ends
STALLED_S = 60.0  # how long a client may read nothing of its responses


class RequestReader(Protocol):
    """Reader of requests to infer; both methods raise RequestError."""

    async def decode(self, raw: bytes) -> Any:
        """Decode a message."""
        ...

    async def prepare(self, message: Any, call: Call) -> tuple[Inference, GrpcInferRequest]:
        """Check what a message asks for."""
        ...


class InferStream:
    """One stream; cancelling it ends all that it has begun."""

    def __init__(
        self,
        service: InferenceService,
        reader: RequestReader,
        calls: Calls,
        call: Call,
        write: Callable[[bytes], Awaitable[None]],
        *,
        stalled_s: float = STALLED_S,
    ) -> None:
        self._service = service
        self._reader = reader
        self._calls = calls
        self._call = call  # of an admitted caller
        self._write = write
        self._stalled_s = stalled_s
        self._has_room = asyncio.Semaphore(MAX_REQUESTS_PER_STREAM)
        self._turn = asyncio.Lock()  # one response is written at a time
        self._writing_since: float | None = None

    async def answer_all(self, messages: AsyncIterator[bytes]) -> None:
        """Answer encoded messages until there are no more and all are answered.

        Each message is a request whose caller is identified anew, as its key may have been revoked meanwhile; the first
        was admitted with the call. Responses are written by the tasks that make them: a queue between would cost as
        much as the rest.
        """
        is_admitted = True
        watching = asyncio.create_task(self._watch(asyncio.current_task()))
        try:
            async with asyncio.TaskGroup() as tasks:
                async for message in messages:
                    await self._has_room.acquire()
                    tasks.create_task(self._answer(message, is_admitted=is_admitted))
                    is_admitted = False
        finally:
            watching.cancel()

    async def _watch(self, stream: "asyncio.Task[Any] | None") -> None:
        """Cancel the stream of a client that reads nothing for long."""
        while True:
            await asyncio.sleep(self._stalled_s / 4)
            since = self._writing_since
            if since is not None and time.monotonic() - since > self._stalled_s and stream is not None:
                stream.cancel()

    async def _answer(self, raw: bytes, *, is_admitted: bool) -> None:
        call, message = self._calls.request_of(self._call), pb.ModelInferRequest()
        try:
            with self._calls.logged(call):
                message = await self._reader.decode(raw)
                if not is_admitted:
                    self._calls.admit(call)
                await self._answer_message(message, call)
        except grpc.aio.BaseError:
            pass  # the client has left while a response was written
        except Exception as error:
            response = pb.ModelInferResponse(model_name=message.model_name, id=message.id)
            refused = pb.ModelStreamInferResponse(error_message=self._calls.refused(error), infer_response=response)
            await self._send(refused)
        finally:
            self._has_room.release()

    async def _answer_message(self, message: Any, call: Call) -> None:
        inference, asked = await self._reader.prepare(message, call)
        if isinstance(inference, TextInference) and inference.request.streams:
            await self._stream_text(call, inference, asked)
            return
        result = await self._service.infer(call.request_context(), inference)
        response = write_infer_result(result, is_raw=asked.is_raw)
        response.parameters[FINAL_RESPONSE].bool_param = True
        await self._send(pb.ModelStreamInferResponse(infer_response=response))

    async def _stream_text(self, call: Call, inference: TextInference, asked: GrpcInferRequest) -> None:
        request, has_ended = inference.request, False
        if len(request.texts) != 1:
            raise InvalidParameter("text_input must hold one text in a stream", "text_input")
        response = pb.ModelStreamInferResponse(infer_response=_text_response(inference, is_raw=asked.is_raw))
        opening = request.texts[0] if request.repeats_input else ""
        outputs = self._service.outputs(call.request_context(), request, inference.input_ns)
        async with aclosing(outputs):
            async for output in outputs:
                for completion in output.output.outputs:
                    check_ended_well(completion)
                    has_ended = completion.finish_reason is not None
                    if text := opening + completion.text:
                        _set_text(response.infer_response, text.encode(errors="replace"), is_raw=asked.is_raw)
                        opening = ""
                        await self._send(response)
        if not has_ended:
            raise RequestFailed("the outputs ended before the text had")
        if asked.wants_final_response:
            final = pb.ModelInferResponse(
                model_name=request.generation.model.name, model_version=VERSION, id=request.id
            )
            final.parameters[FINAL_RESPONSE].bool_param = True
            await self._send(pb.ModelStreamInferResponse(infer_response=final))

    async def _send(self, response: Any) -> None:
        async with self._turn:
            self._writing_since = time.monotonic()
            try:
                await self._write(response.SerializeToString())
            finally:
                self._writing_since = None


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
