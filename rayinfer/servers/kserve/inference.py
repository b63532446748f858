"""Inference on models of both kinds, the same for REST, gRPC and the older protocol."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from rayinfer.errors import InvalidParameter, RequestFailed, RequestTimedOut
from rayinfer.protocols import Tensor, TensorModel, TensorRequest
from rayinfer.servers.caller import RequestContext
from rayinfer.servers.generation.prompt_outputs import PromptOutput
from rayinfer.servers.generation.service import GenerationService
from rayinfer.servers.kserve.infer_request import InferRequest, InferResult
from rayinfer.servers.kserve.prediction_tensors import (
    PredictionInference,
    prediction_tensors,
    predictor_description,
    read_prediction,
)
from rayinfer.servers.kserve.repository import AnyModel, ModelRepository
from rayinfer.servers.kserve.statistics import InferStatistics
from rayinfer.servers.kserve.tensors.classification import classify
from rayinfer.servers.kserve.tensors.tensor_json import bytes_array
from rayinfer.servers.kserve.tensors.tensor_shapes import check_inputs
from rayinfer.servers.kserve.text_outputs import TextCollector
from rayinfer.servers.kserve.text_request import TextRequest, read_text_tensors
from rayinfer.servers.prediction.service import PredictionService
from rayinfer.servers.served_model import ServedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInference:
    """A checked inference on a model of tensors."""

    model: TensorModel
    request: InferRequest
    num_rows: int
    input_ns: int = 0  # that decoding took


@dataclass(frozen=True, kw_only=True, slots=True)
class TextInference:
    """A checked inference on a language model."""

    request: TextRequest
    shape: tuple[int, ...]  # of the input and the output
    input_ns: int = 0


Inference = TensorInference | TextInference | PredictionInference


class InferenceService:
    """Checked inferences and their execution, over the models of a repository."""

    def __init__(self, generation: GenerationService, repository: ModelRepository) -> None:
        self.generation = generation
        self._predictions = PredictionService(generation)
        self.repository = repository
        self.statistics = InferStatistics()

    def check(self, model: AnyModel, request: InferRequest, started_ns: int) -> Inference:
        """Check a request against its model, and tokenize its texts; raises RequestError."""
        if isinstance(model, ServedModel):
            if (description := predictor_description(model)) is not None:
                input_ns = time.monotonic_ns() - started_ns
                return read_prediction(model, description, self.generation.limits, request, input_ns)
            text = read_text_tensors(model, self.generation.limits, request)
            shape = request.inputs["text_input"].data.shape
            return TextInference(request=text, shape=shape, input_ns=time.monotonic_ns() - started_ns)
        num_rows = check_inputs(model, request.inputs)
        known = [spec.name for spec in model.outputs]
        for output in request.outputs or ():
            if output.name not in known:
                raise InvalidParameter(
                    f"the model {model.name!r} has no output {output.name!r:.80}; it has {', '.join(known)}", "outputs"
                )
        input_ns = time.monotonic_ns() - started_ns
        return TensorInference(model=model, request=request, num_rows=num_rows, input_ns=input_ns)

    async def infer(self, context: RequestContext, inference: Inference) -> InferResult:
        """Run an inference to its end; cancelling it ends the work. Raises RequestError and Unavailable."""
        if isinstance(inference, TextInference):
            request = inference.request
            texts = await self.generate(context, request, inference.input_ns)
            data = bytes_array([text.encode(errors="replace") for text in texts], inference.shape)
            outputs = [Tensor("text_output", "BYTES", data)]
            return InferResult(id=request.id, model=request.generation.model.name, outputs=outputs)
        if isinstance(inference, PredictionInference):
            return await self._predict(context, inference)
        outputs = await self._run_tensor_model(context, inference)
        return InferResult(id=inference.request.id, model=inference.model.name, outputs=outputs)

    async def generate(self, context: RequestContext, request: TextRequest, input_ns: int = 0) -> list[str]:
        """Return the whole texts of a request."""
        collector = TextCollector(request)
        async with aclosing(self.outputs(context, request, input_ns)) as outputs:
            async for output in outputs:
                collector.add(output)
        return collector.texts()

    def outputs(
        self, context: RequestContext, request: TextRequest, input_ns: int = 0
    ) -> AsyncGenerator[PromptOutput, None]:
        """Start the generation of a request's texts; closing the generator ends it."""
        model = request.generation.model.name
        try:
            outputs = self.generation.start(context, request.generation, f"infer-{context.identity.name}")
        except Exception:
            self.statistics.of(model).fail.add(input_ns)
            raise
        return self._counted(outputs, request, input_ns)

    async def _counted(
        self, outputs: AsyncGenerator[PromptOutput, None], request: TextRequest, input_ns: int
    ) -> AsyncGenerator[PromptOutput, None]:
        async with aclosing(outputs):
            with self.statistics.count(request.generation.model.name, len(request.texts), input_ns):
                async for output in outputs:
                    yield output

    async def _predict(self, context: RequestContext, inference: PredictionInference) -> InferResult:
        prepared = inference.prepared
        with self.statistics.count(prepared.model.name, len(prepared.items), inference.input_ns):
            outputs = await self._predictions.predict(context, prepared, f"infer-{context.identity.name}")
        tensors = prediction_tensors(inference, outputs)
        return InferResult(id=inference.request.id, model=prepared.model.name, outputs=tensors)

    async def _run_tensor_model(self, context: RequestContext, inference: TensorInference) -> list[Tensor]:
        model, request = inference.model, inference.request
        timeout_s = self.generation.remaining_s(context, request.settings.timeout_s)
        settings = TensorRequest(
            request_id=context.identity.name,
            priority=request.settings.priority,
            timeout_s=timeout_s,
            tenant=context.caller.tenant,
            parameters=request.settings.model,
        )
        with (
            self.statistics.count(model.name, inference.num_rows, inference.input_ns),
            self.generation.admit_inference(context, model.name, request.settings.priority),
        ):
            try:
                async with asyncio.timeout(timeout_s):
                    tensors = await model.infer(request.inputs, settings)
            except TimeoutError:
                raise RequestTimedOut("The request's time ran out before its answer was complete.") from None
        by_name = {tensor.name: tensor for tensor in tensors}
        if missing := [spec.name for spec in model.outputs if spec.name not in by_name]:
            raise RequestFailed(f"the model {model.name!r} returned no output {missing[0]!r}")
        if request.outputs is None:
            return [by_name[spec.name] for spec in model.outputs]
        is_batch = model.max_batch_size > 0
        return [
            classify(by_name[each.name], each.num_classes, model.labels.get(each.name, ()), is_batch=is_batch)
            if each.num_classes
            else by_name[each.name]
            for each in request.outputs
        ]
