"""Methods of GRPCInferenceService by their names, as any server of gRPC may call them."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from google.protobuf.message_factory import GetMessageClass

from rayinfer.access.api_key import Scope
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.calls import Call, Calls, decode_message
from rayinfer.servers.kserve.grpc.servicer import InferenceServicer
from rayinfer.servers.kserve.inference import InferenceService
from rayinfer.servers.prediction.body_limits import BodyLimits

SERVICE = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"]
STREAM_METHOD = "ModelStreamInfer"  # the only one that is a stream, in both directions
UNARY_METHODS = tuple(method.name for method in SERVICE.methods if method.name != STREAM_METHOD)
OPEN_METHODS = frozenset(("ServerLive", "ServerReady"))  # without a key, as the paths of health over HTTP
OPERATOR_METHODS = frozenset(("RepositoryModelLoad", "RepositoryModelUnload"))  # need the scope `operate`


class InferenceMethods:
    """Methods that take encoded messages; errors end their calls."""

    def __init__(self, service: InferenceService, calls: Calls, *, body_limits: BodyLimits | None = None) -> None:
        """Take the bound of requests to infer; None where the server of gRPC has one."""
        self._calls = calls
        self._servicer = InferenceServicer(service, calls, body_limits)

    async def unary(self, name: str, raw: bytes, context: Any) -> Any:
        """Answer a message with a message; None where the call has ended with an error."""
        answer, message = self._find(name)

        async def respond(call: Call) -> Any:
            # Requests to infer may be long: they are decoded beside the event loop.
            return await answer(raw if message is None else decode_message(message, raw), call)

        return await self._calls.run(context, f"/{SERVICE.full_name}/{name}", _scope_of(name), respond)

    async def stream(
        self, messages: AsyncIterator[bytes], context: Any, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Answer the messages of ModelStreamInfer, with encoded responses."""

        async def respond(call: Call) -> None:
            await self._servicer.model_stream_infer(messages, call, write)

        await self._calls.run(context, f"/{SERVICE.full_name}/{STREAM_METHOD}", Scope.INFER, respond)

    def _find(self, name: str) -> tuple[Callable[..., Awaitable[Any]], Any]:
        """Return what answers a method, and the class of its message where that is decoded before."""
        snake_case = re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()
        if "shared_memory" in snake_case:
            snake_case = "refuse_shared_memory"
        message = None if name == "ModelInfer" else GetMessageClass(SERVICE.methods_by_name[name].input_type)
        return getattr(self._servicer, snake_case), message


def _scope_of(method: str) -> Scope | None:
    """Return the scope that a method needs; None for one that needs no caller."""
    if method in OPEN_METHODS:
        return None
    return Scope.OPERATE if method in OPERATOR_METHODS else Scope.INFER
