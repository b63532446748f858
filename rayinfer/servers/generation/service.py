"""The way of a request for text from its body to its outputs, the same for every protocol."""

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, TypeVar

from fastapi import Request

from rayinfer.access.access_control import AccessControl
from rayinfer.access.generation_usage import EngineClock, GenerationUsage
from rayinfer.beam_search.search import BeamSearchParams
from rayinfer.errors import InvalidParameter, ShuttingDown
from rayinfer.grammars.grammar_checks import GrammarChecks
from rayinfer.images.fetching.fetched_images import with_fetched_images
from rayinfer.images.fetching.media_fetcher import MediaFetcher
from rayinfer.images.inputs import RemoteImages
from rayinfer.predictions import ImageInput, PredictionInput
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.caller import RequestContext
from rayinfer.servers.generation.beam_outputs import search_beams
from rayinfer.servers.generation.engine_refusals import refusing_bad_adapters, refusing_bad_images
from rayinfer.servers.generation.generation_spans import generation_span
from rayinfer.servers.generation.key_limits import check_model_and_priority, reserved_tokens, within_key_limits
from rayinfer.servers.generation.prompt_outputs import PromptLists, PromptOutput, generate_outputs
from rayinfer.servers.generation.structured_output import check_grammar, check_supports_grammars
from rayinfer.servers.json_body import LONG_BODY_BYTES, LongBodies, decode_object, read_body
from rayinfer.servers.request_limits import DEFAULT_REQUEST_LIMITS, RequestLimits
from rayinfer.servers.served_model import ServedModel
from rayinfer.traces.generation_span import SpanRecorder
from rayinfer.traces.trace_store import TraceStore

Prepared = TypeVar("Prepared")

MAX_INPUTS_AHEAD = 96  # of predictions: two batches of an engine that computes short texts
_SLOW_FIELDS = ("bad_words", "chat_template", "response_format", "structured_outputs", "format", "tools")
_SLOW_OBJECTS = ("output_config", "text")  # where Anthropic's Messages and OpenAI's Responses have their formats


def _is_slow(body: Mapping[str, Any]) -> bool:
    parameters = body.get("parameters")  # TGI's
    has_grammar = isinstance(parameters, dict) and bool(parameters.get("grammar"))
    has_format = any(isinstance(body.get(field), dict) for field in _SLOW_OBJECTS)
    return has_grammar or has_format or any(body.get(field) for field in _SLOW_FIELDS)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedGeneration:
    """A validated request for text or for predictions: one or several prompts with the same settings."""

    model: ServedModel
    params: SamplingParams
    prompts: Sequence[list[int]]
    length_field: str | None = None  # by which the client chose `max_tokens`; None for a default
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None  # the client's own; the service's applies too
    operation: str = "text_completion"  # OpenTelemetry's name of what is done
    inputs: Sequence[PredictionInput] = ()  # one for each prompt, for a model that does not generate
    form_field: str = "structured_outputs"  # by which the client chose the form of the answer, if it did
    images: tuple[ImageInput, ...] = ()  # of the only prompt
    beams: BeamSearchParams | None = None  # a beam search; of `params`, the limits and the form of the answer count

    @property
    def counted_prompts(self) -> Sequence[Sequence[int]]:
        """Prompts as keys and usage count them: of inputs without text, as many tokens as they count for."""
        if not self.inputs:
            return self.prompts
        pairs = zip(self.prompts, self.inputs, strict=True)
        return [prompt or range(each.num_tokens(0)) for prompt, each in pairs]


class GenerationService:
    """Preparation and start of generations over the models in a mapping that may change while we serve."""

    def __init__(
        self,
        models: Mapping[str, ServedModel],
        request_timeout_s: float | None,
        traces: TraceStore | None,
        limits: RequestLimits = DEFAULT_REQUEST_LIMITS,
        access: AccessControl | None = None,
        spans: SpanRecorder | None = None,
        media: MediaFetcher | None = None,
    ) -> None:
        """Take what requests go through; without `media` no image of a URL is fetched."""
        self.models = models
        self.limits = limits
        self._access = access
        self._spans = spans
        self._media = media
        self._request_timeout_s = request_timeout_s
        self._traces = traces
        self._long_bodies = LongBodies()
        self._grammar_checks = GrammarChecks()
        self._prompt_lists = PromptLists()
        self._input_lists = PromptLists(MAX_INPUTS_AHEAD)

    async def prepare(self, request: Request, prepare: Callable[[dict[str, Any]], Prepared]) -> Prepared:
        """Read a body of JSON, check it and tokenize its prompts; raises RequestError.

        That runs in a thread where it may take more than a few milliseconds: schemas, templates and tokenizers work in
        proportion to the body; each forbidden word is tokenized three times, and a client's template may do anything.
        Images of URLs are fetched first, once everything before them in `prepare` was checked.
        """
        raw = await read_body(request)
        try:
            return await self.prepare_json(raw, prepare)
        except RemoteImages as remote:
            if self._media is None:
                raise
            place = remote.param or "image"
            images = await self._media.fetch(remote.urls, place, max_bytes=self.limits.max_image_bytes)
        num_bytes = sum(map(len, images.values()))
        return await self.prepare_json(
            raw, lambda body: prepare(with_fetched_images(body, images)), num_more_bytes=num_bytes
        )

    async def prepare_json(
        self, raw: bytes, prepare: Callable[[dict[str, Any]], Prepared], *, num_more_bytes: int = 0
    ) -> Prepared:
        """Do the same for JSON that was read already, with so many other bytes behind it; raises RequestError."""
        if len(raw) + num_more_bytes > LONG_BODY_BYTES:
            return await self._long_bodies.prepare(raw, prepare)
        body = decode_object(raw)
        # Looked up in what was decoded, as a name may be written with escapes.
        if _is_slow(body):
            return await self._long_bodies.prepare(raw, prepare)
        return prepare(body)

    async def prepare_other(self, work: Callable[[], Prepared], num_bytes: int) -> Prepared:
        """Do the same for a request of so many bytes that is not JSON; raises RequestError."""
        return await self._long_bodies.run(work, num_bytes) if num_bytes > LONG_BODY_BYTES else work()

    def check_supports_grammars(self, model: ServedModel, params: SamplingParams, field: str) -> None:
        """Raise InvalidParameter where the model cannot hold its answers to a form; `field` is the client's for it."""
        if params.structured_outputs is not None:
            check_supports_grammars(model, field)

    async def check_grammar(self, generation: PreparedGeneration) -> None:
        """Wait until what the answers are held to is compiled; raises InvalidParameter with the client's field.

        Where that is not awaited, an engine that refuses a grammar ends its request with GenerationRefused.
        """
        if (spec := generation.params.structured_outputs) is not None:
            await check_grammar(self._grammar_checks, generation.model, spec, generation.form_field)

    def remaining_s(self, context: RequestContext, own_s: float | None) -> float | None:
        """Return the time that a request has left, by its own limit and the service's; None for no limit.

        Rows of batches have their batch's window, for which they may wait.
        """
        service_s = None if context.is_batch_row else self._request_timeout_s
        elapsed_s = max(0.0, time.time() - context.identity.received_s)
        own_s = None if own_s is None else max(0.0, own_s - elapsed_s)
        return min((each for each in (own_s, service_s) if each is not None), default=None)

    def start(
        self, context: RequestContext, generation: PreparedGeneration, response_id: str
    ) -> AsyncGenerator[PromptOutput, None]:
        """Start a generation and yield its outputs; closing the generator ends it.

        Raises RequestError and Unavailable at once, or with the first output.
        """
        if isinstance(refusal := generation.model.generator.overload(), ShuttingDown):
            raise refusal  # here, as the rest of a list of prompts that has begun is still admitted
        if context.priority is not None:
            generation = replace(generation, priority=context.priority)
        if not generation.inputs:
            self.limits.check_params(generation.params)
            self.limits.check_num_choices(len(generation.prompts), generation.params.n)
        if self._access is None and context.record is None and self._spans is None:
            return self._start(context, generation, response_id)
        return self._start_counted(context, generation, response_id)

    async def _start_counted(
        self, context: RequestContext, generation: PreparedGeneration, response_id: str
    ) -> AsyncGenerator[PromptOutput, None]:
        """Start a generation within the limits of the caller's key, and count its tokens until it ends."""
        generation = within_key_limits(context.caller, generation)
        with self._recorded(context, generation, response_id) as usage:
            async with aclosing(self._start(context, generation, response_id)) as outputs:
                async for output in outputs:
                    usage.add(output.prompt, output.output)
                    yield output

    @contextmanager
    def _recorded(
        self, context: RequestContext, generation: PreparedGeneration, response_id: str
    ) -> Iterator[GenerationUsage]:
        """Hold the caller's place for a generation, and record its usage, also in a span at its end."""
        error: BaseException | None = None
        with self._admitted(context, generation) as usage:
            if context.record is not None:
                context.record.usage = usage
            try:
                yield usage
            except BaseException as caught:
                error = caught
                raise
            finally:
                dispatched_s = self.dispatched_s(context, response_id)
                if context.record is not None:
                    context.record.dispatched_s = dispatched_s
                if self._spans is not None:
                    span = generation_span(
                        context, generation, usage, response_id=response_id, dispatched_s=dispatched_s, error=error
                    )
                    self._spans.record(span)

    def _admitted(
        self, context: RequestContext, generation: PreparedGeneration
    ) -> AbstractContextManager[GenerationUsage]:
        name, prompts = generation.model.name, generation.counted_prompts
        if self._access is None:
            return nullcontext(GenerationUsage("", name, prompts, EngineClock()))
        return self._access.admit(
            context.caller,
            name,
            prompts,
            num_choices=generation.params.n,
            max_tokens=reserved_tokens(context.caller, generation),
            generates=not generation.inputs,
        )

    def admit_inference(self, context: RequestContext, model: str, priority: int) -> AbstractContextManager[None]:
        """Hold the caller's place for an inference without tokens, and count it; raises RayinferError when refused."""
        if self._access is None:
            return nullcontext()
        check_model_and_priority(context.caller, model, priority)
        return self._access.admit_inference(context.caller, model)

    def _start(
        self, context: RequestContext, generation: PreparedGeneration, response_id: str
    ) -> AsyncGenerator[PromptOutput, None]:
        requests = self._requests(context, generation)
        if generation.beams is not None:
            if generation.images:
                raise InvalidParameter("use_beam_search is not supported with images", "use_beam_search")
            return search_beams(generation.model, requests, generation.beams, self._prompt_lists)
        if self._traces is not None:
            self._traces.open(
                name=context.identity.name,
                response_id=response_id,
                model=generation.model.name,
                request_ids=[each.request_id for each in requests],
                received_s=context.identity.received_s,
                tenant=context.caller.tenant,
                prompt_token_ids=next(iter(generation.prompts), ()),
                adapter=requests[0].adapter if requests else None,
            )
        lists = self._input_lists if generation.inputs else self._prompt_lists
        outputs = generate_outputs(generation.model.generator, requests, lists)
        if generation.model.adapter is not None:
            outputs = refusing_bad_adapters(outputs)
        return refusing_bad_images(outputs) if generation.images else outputs

    def dispatched_s(self, context: RequestContext, response_id: str) -> float | None:
        """Return when a request was sent to an engine, in seconds since 1970; None where requests are not traced."""
        if self._traces is None:
            return None
        return self._traces.dispatched_s(context.identity.name, context.caller.tenant, response_id)

    def _requests(self, context: RequestContext, generation: PreparedGeneration) -> list[GenerationRequest]:
        """Make one request of each prompt."""
        timeout_s, adapter = self.remaining_s(context, generation.timeout_s), generation.model.adapter
        return [
            GenerationRequest(
                request_id=uuid.uuid4().hex,  # ours: two clients may choose the same name
                prompt_token_ids=prompt,
                sampling_params=generation.params,
                priority=generation.priority,
                timeout_s=timeout_s,
                tenant=context.caller.tenant,
                cache_salt=generation.cache_salt or context.caller.cache_salt,
                trace=self._traces is not None,
                prediction=prediction,
                images=generation.images,
                adapter=None if adapter is None else adapter.id,
                adapter_folder="" if adapter is None else adapter.folder,
            )
            for prompt, prediction in zip(generation.prompts, generation.inputs or repeat(None), strict=False)
        ]
