"""The way of a prepared prediction to the outputs of its items, the same for every protocol."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from fastapi import Request
from starlette.responses import Response

from rayinfer.errors import InvalidParameter, NotReady, PredictionFailed, RequestFailed
from rayinfer.predictions import PredictionInput, PredictionOutput, PredictionTask, PredictorDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.caller import RequestContext
from rayinfer.servers.error_responses import json_response
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.generation.service import GenerationService, PreparedGeneration
from rayinfer.servers.kserve.rest.awaited_response import AwaitedResponse
from rayinfer.servers.prediction.number_encoding import MANY_NUMBERS
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel

NO_SAMPLING = SamplingParams(max_tokens=1)  # nothing is generated

Prepared = TypeVar("Prepared")
Encoded = TypeVar("Encoded")


@dataclass(frozen=True, slots=True)
class PredictionItem:
    """One input: its token ids, if it is text, and the rest of it."""

    token_ids: list[int]
    input: PredictionInput

    @property
    def num_tokens(self) -> int:
        """Tokens that it counts as."""
        return self.input.num_tokens(len(self.token_ids))


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedPrediction:
    """A validated request for predictions: one or several items of one model."""

    model: ServedModel
    description: PredictorDescription
    items: Sequence[PredictionItem]
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None  # the client's own; the service's applies too
    operation: str = "embeddings"  # OpenTelemetry's name of what is done

    @property
    def num_tokens(self) -> int:
        """Tokens of all items."""
        return sum(item.num_tokens for item in self.items)

    @property
    def num_numbers(self) -> int:
        """Numbers that all items are answered with."""
        return sum(_num_numbers(item, self.description) for item in self.items)

    def as_generation(self) -> PreparedGeneration:
        """Return it as the requests of a generator are prepared."""
        return PreparedGeneration(
            model=self.model,
            params=NO_SAMPLING,
            prompts=[item.token_ids for item in self.items],
            inputs=[item.input for item in self.items],
            priority=self.priority,
            cache_salt=self.cache_salt,
            timeout_s=self.timeout_s,
            operation=self.operation,
        )


class PredictionService:
    """Preparation and execution of predictions, over the models of a generation service."""

    def __init__(self, generation: GenerationService) -> None:
        self.generation = generation

    @property
    def limits(self) -> RequestLimits:
        """What one request may ask for."""
        return self.generation.limits

    async def prepare(self, request: Request, prepare: Callable[[dict[str, Any]], Prepared]) -> Prepared:
        """Read a body of JSON and prepare what it asks for; raises RequestError."""
        return await self.generation.prepare(request, prepare)

    async def predict(
        self, context: RequestContext, prepared: PreparedPrediction, response_id: str
    ) -> list[PredictionOutput]:
        """Compute all items and return their outputs in order; cancelling it ends them all.

        The first item that fails ends the others of its request, and no more. Raises RequestError and Unavailable.
        """
        if (count := prepared.num_numbers) > self.limits.max_response_numbers:
            raise InvalidParameter(
                f"The response would hold {count} numbers, at most {self.limits.max_response_numbers} are returned: "
                "send fewer or shorter inputs."
            )
        outputs: dict[int, PredictionOutput] = {}
        async with aclosing(self.generation.start(context, prepared.as_generation(), response_id)) as stream:
            async for each in stream:
                _check_output(each, len(prepared.items))
                if each.output.prediction is not None:
                    outputs[each.prompt] = each.output.prediction
        if len(outputs) < len(prepared.items):
            raise RequestFailed(f"{len(prepared.items) - len(outputs)} inputs were left without an output")
        return [outputs[index] for index in range(len(prepared.items))]

    def respond(
        self,
        context: RequestContext,
        prepared: PreparedPrediction,
        response_id: str,
        encode: Callable[[list[PredictionOutput]], bytes],
        headers: Callable[[], dict[str, str]] = dict,
    ) -> Response:
        """Answer with the outputs encoded as JSON; see `answer`."""
        return self.answer(
            context, prepared, response_id, lambda outputs: json_response(encode(outputs), 200, headers())
        )

    def answer(
        self,
        context: RequestContext,
        prepared: PreparedPrediction,
        response_id: str,
        make_response: Callable[[list[PredictionOutput]], Response],
    ) -> Response:
        """Answer with the outputs; nothing is sent before all are there, and a client that leaves ends them."""

        async def respond() -> Response:
            outputs = await self.predict(context, prepared, response_id)
            return await run_encoder(partial(make_response, outputs), prepared.num_numbers)

        return AwaitedResponse(respond)


async def run_encoder(encode: Callable[[], Encoded], num_numbers: int) -> Encoded:
    """Encode a response, beside the event loop where it has many numbers."""
    return await asyncio.to_thread(encode) if num_numbers > MANY_NUMBERS else encode()


def predictor_of(model: ServedModel, tasks: Sequence[PredictionTask]) -> PredictorDescription:
    """Return the description of a model that was found for one of the tasks; raises NotReady and RequestFailed."""
    description = model.generator.describe().predictor
    if description is None or not set(tasks) & set(description.tasks):
        raise NotReady("The model has changed meanwhile.")
    return description


def first_task(description: PredictorDescription, tasks: Sequence[PredictionTask]) -> PredictionTask:
    """Return the first of the tasks that a model does; there must be one."""
    return next(task for task in tasks if task in description.tasks)


def _num_numbers(item: PredictionItem, description: PredictorDescription) -> int:
    match item.input.task:
        case "embed":
            return description.embedding_size
        case "token_embed":
            return description.embedding_size * len(item.token_ids)
        case "classify":
            return len(description.labels)
        case "token_classify":
            return len(description.labels) * len(item.token_ids)
    return 1


def _check_output(each: PromptOutput, num_items: int) -> None:
    """Raise the error of an item that failed."""
    prediction = each.output.prediction
    if prediction is not None and prediction.error:
        where = f"Input {each.prompt}: " if num_items > 1 else ""
        raise PredictionFailed(f"{where}{prediction.error}", "input")
    for completion in each.output.outputs:
        check_ended_well(completion)
