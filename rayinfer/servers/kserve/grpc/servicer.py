"""The calls of GRPCInferenceService, over the same inference service as REST's."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

from google.protobuf import json_format

from rayinfer.errors import NotReady, NotSupported, RequestTooLarge, UnknownModel
from rayinfer.servers.kserve.grpc import inference_pb2 as pb
from rayinfer.servers.kserve.grpc.calls import Call, Calls, decode_message
from rayinfer.servers.kserve.grpc.infer_messages import GrpcInferRequest, read_infer_message, write_infer_result
from rayinfer.servers.kserve.grpc.infer_stream import InferStream
from rayinfer.servers.kserve.infer_request import SHARED_MEMORY_MESSAGE
from rayinfer.servers.kserve.inference import Inference, InferenceService
from rayinfer.servers.kserve.model_descriptions import (
    LOG_SETTINGS,
    TRACE_SETTINGS,
    model_config,
    model_metadata,
    server_metadata,
)
from rayinfer.servers.kserve.repository import VERSION, AnyModel
from rayinfer.servers.kserve.rest.infer_encoding import is_slow_to_encode
from rayinfer.servers.prediction.body_limits import BodyLimits


class InferenceServicer:
    """One method for each call, by its name in snake case; errors are those of `rayinfer.errors`."""

    def __init__(self, service: InferenceService, calls: Calls, body_limits: BodyLimits | None = None) -> None:
        self._body_limits = body_limits
        self._service = service
        self._repository = service.repository
        self._calls = calls

    async def server_live(self, request: Any, call: Call) -> Any:
        """Report that the process is alive."""
        return pb.ServerLiveResponse(live=True)

    async def server_ready(self, request: Any, call: Call) -> Any:
        """Report whether all models are ready."""
        try:
            self._repository.check_all_ready()
        except NotReady:
            return pb.ServerReadyResponse(ready=False)
        return pb.ServerReadyResponse(ready=True)

    async def model_ready(self, request: Any, call: Call) -> Any:
        """Report whether a model is ready; one that does not exist is not."""
        try:
            self._repository.find_ready(call.caller, request.name, request.version)
        except (NotReady, UnknownModel):
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    async def server_metadata(self, request: Any, call: Call) -> Any:
        """Describe the server."""
        return pb.ServerMetadataResponse(**server_metadata())

    async def model_metadata(self, request: Any, call: Call) -> Any:
        """Describe a model's tensors."""
        return pb.ModelMetadataResponse(**model_metadata(self._find(request, call)))

    async def model_config(self, request: Any, call: Call) -> Any:
        """Describe a model as Triton's configuration does."""
        config = json_format.ParseDict(model_config(self._find(request, call)), pb.ModelConfig())
        return pb.ModelConfigResponse(config=config)

    async def model_statistics(self, request: Any, call: Call) -> Any:
        """Report the counters of a model, or of all."""
        names = [self._find(request, call).name] if request.name else self._repository.names(call.caller)
        statistics = []
        for name in names:
            counters = self._service.statistics.of(name).as_dict(name, VERSION)
            described = json_format.ParseDict(counters, pb.ModelStatistics(), ignore_unknown_fields=True)
            statistics.append(described)
        return pb.ModelStatisticsResponse(model_stats=statistics)

    async def model_infer(self, raw: bytes, call: Call) -> Any:
        """Run a model for an encoded request."""
        inference, asked = await self.prepare(await self.decode(raw), call)
        result = await self._service.infer(call.request_context(), inference)
        started_ns = time.monotonic_ns()
        if is_slow_to_encode(result):
            response = await asyncio.to_thread(write_infer_result, result, is_raw=asked.is_raw)
        else:
            response = write_infer_result(result, is_raw=asked.is_raw)
        self._service.statistics.of(result.model).compute_output.add(time.monotonic_ns() - started_ns)
        return response

    async def model_stream_infer(
        self, requests: AsyncIterator[bytes], call: Call, write: Callable[[bytes], Awaitable[None]]
    ) -> None:
        """Run models for every encoded request of a stream, and write encoded responses."""
        await InferStream(self._service, self, self._calls, call, write).answer_all(requests)

    async def repository_index(self, request: Any, call: Call) -> Any:
        """List the models."""
        entries = self._repository.index(call.caller, only_ready=request.ready)
        return pb.RepositoryIndexResponse(models=[pb.RepositoryIndexResponse.ModelIndex(**each) for each in entries])

    async def repository_model_load(self, request: Any, call: Call) -> Any:
        """Load a model that was unloaded."""
        self._repository.load(call.caller, request.model_name, request.parameters)
        return pb.RepositoryModelLoadResponse()

    async def repository_model_unload(self, request: Any, call: Call) -> Any:
        """Unload a model."""
        self._repository.unload(call.caller, request.model_name)
        return pb.RepositoryModelUnloadResponse()

    async def trace_setting(self, request: Any, call: Call) -> Any:
        """Report the trace settings, which are read-only."""
        if request.model_name:
            self._repository.find(call.caller, request.model_name)
        if request.settings:
            raise NotSupported("Trace settings are read-only.")
        response = pb.TraceSettingResponse()
        for name, value in TRACE_SETTINGS.items():
            response.settings[name].value.extend(value if isinstance(value, list) else [value])
        return response

    async def log_settings(self, request: Any, call: Call) -> Any:
        """Report the logging settings, which are read-only."""
        if request.settings:
            raise NotSupported("Logging settings are read-only.")
        response = pb.LogSettingsResponse()
        for name, value in LOG_SETTINGS.items():
            field = {bool: "bool_param", int: "uint32_param", str: "string_param"}[type(value)]
            setattr(response.settings[name], field, value)
        return response

    async def refuse_shared_memory(self, request: Any, call: Call) -> Any:
        """Refuse any call of shared memory."""
        raise NotSupported(SHARED_MEMORY_MESSAGE)

    def _find(self, request: Any, call: Call) -> AnyModel:
        return self._repository.find(call.caller, request.name, request.version)

    async def decode(self, raw: bytes) -> Any:
        """Decode a request to infer; a long one beside the event loop."""
        if self._body_limits is not None and len(raw) > (most := self._body_limits.largest):
            raise RequestTooLarge(f"The call's message is larger than {most} bytes.")
        return await self._service.generation.prepare_other(
            partial(decode_message, pb.ModelInferRequest, raw), len(raw)
        )

    async def prepare(self, message: Any, call: Call) -> tuple[Inference, GrpcInferRequest]:
        """Check a request; a long one beside the event loop."""
        model = self._repository.find_ready(call.caller, message.model_name, message.model_version)

        def prepare() -> tuple[Inference, GrpcInferRequest]:
            started_ns = time.monotonic_ns()
            asked = read_infer_message(message, call.deadline_s)
            return self._service.check(model, asked.request, started_ns), asked

        return await self._service.generation.prepare_other(prepare, message.ByteSize())
