"""`LLM`: an engine in this process, for offline inference."""

import itertools
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn

from rayinfer.beam_search.prompt_searches import PromptSearches
from rayinfer.beam_search.search import BeamSearchParams
from rayinfer.config import DEFAULT_MODEL, engine_config
from rayinfer.engine.build import build_engine
from rayinfer.engine.loop.interrupts import deferral_installed
from rayinfer.errors import EngineDead, InvalidParameter, RequestError
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.images.prompts import ImagePrompts
from rayinfer.llm.adapter_requests import AdapterRequests, LoRARequest, spread_adapters
from rayinfer.llm.arguments import Message, Prompt, Prompts, as_prompts, check_request, checked_token_ids, spread
from rayinfer.llm.beam_search import search_beams
from rayinfer.llm.prompt_images import ImagePrompt, PromptReader
from rayinfer.llm.request_state import RequestState, StepOutput
from rayinfer.models.checkpoints.sources import resolve_model
from rayinfer.outputs import EngineStats, RequestOutput
from rayinfer.progress_bar import progress_bar
from rayinfer.protocols import (
    EngineRequestId,
    GenerationRequest,
    ModelDescription,
    Pause,
    Resume,
    Sleep,
    Wake,
)
from rayinfer.routing.stream_state import StreamState
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.bad_words import bad_word_tokenizer
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.traces.request_trace import RequestTrace


class LLM:
    """A model and its engine in this process, for one thread; the keywords are EngineConfig's fields.

    Raises ConfigError for settings and ModelLoadError for models that cannot work.
    """

    def __init__(self, model: str = DEFAULT_MODEL, **settings: Any) -> None:
        self.config = engine_config(model=model, **settings)
        folder = resolve_model(model)
        self.tokenizer = Tokenizer.from_folder(folder)
        self._reader = PromptReader(ChatTemplate.from_folder(folder), ImagePrompts.from_folder(folder))
        self.engine = build_engine(self.config, folder)
        self._adapters = AdapterRequests(self.engine.control)
        self._requests: dict[str, RequestState] = {}
        self._numbers = itertools.count()
        self._finished_for_step: list[RequestOutput] = []  # for `step`, ended while `generate` or `stream` ran
        self._is_closed = False

    # Whole outputs

    def generate(
        self,
        prompts: Prompts,
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        priority: int | Sequence[int] = 0,
        structured: StructuredOutputsParams | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        trace: bool = False,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Generate outputs of prompts, texts or token ids, in the order of the prompts.

        A prompt with images is vLLM's `{"prompt": text, "multi_modal_data": {"image": image or list}}`, with the text
        `<image>` where an image belongs; images are Pillow's, encoded (JPEG, PNG, WebP) or data: URLs.
        All are held to the form `structured`, if it is given. `lora_request` names the adapter of all, or of each; with
        `trace` each has the events of its request. Raises
        RequestError (a ValueError) naming the first prompt that cannot be served; then none is.
        """
        self.engine.check_running("generate")  # or it would never return
        texts = as_prompts(prompts)
        default = self.get_default_sampling_params() if sampling_params is None else sampling_params
        params = spread(default, len(texts), SamplingParams, "sampling_params")
        if structured is not None:
            params = [replace(each, structured_outputs=structured) for each in params]
        priorities = spread(priority, len(texts), int, "priority")
        adapters = spread_adapters(lora_request, len(texts))
        request_ids: list[str] = []
        try:
            for index, text in enumerate(texts):
                try:
                    request_id = self.add_request(
                        *(text, params[index]), priority=priorities[index], lora_request=adapters[index], trace=trace
                    )
                except RequestError as error:
                    raise type(error)(f"prompt {index}: {error}", error.param, error.code) from None
                request_ids.append(request_id)
            return self._finish_all(request_ids, use_tqdm=use_tqdm)
        finally:
            for request_id in request_ids:
                self.abort(request_id)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        structured: StructuredOutputsParams | None = None,
        lora_request: LoRARequest | Sequence[LoRARequest | None] | None = None,
        trace: bool = False,
        use_tqdm: bool = True,
        **template_arguments: Any,
    ) -> list[RequestOutput]:
        """Generate the reply to one conversation or several; `template_arguments` are passed to the chat template.

        Contents may have parts with images: `{"type": "image", "image": image}` or OpenAI's `image_url`.
        """
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        prompts = [self._chat_prompt(conversation, template_arguments) for conversation in conversations]  # type: ignore[arg-type]
        return self.generate(
            cast(Prompts, prompts),
            sampling_params,
            structured=structured,
            lora_request=lora_request,
            trace=trace,
            use_tqdm=use_tqdm,
        )

    def chat_prompt(self, messages: Sequence[Message], **template_arguments: Any) -> list[int]:
        """Return the token ids of a conversation by the model's chat template."""
        return self._tokenized(self._reader.read_chat(messages, template_arguments).prompt)

    def beam_search(
        self,
        prompts: str | Sequence[str] | Sequence[Sequence[int]],
        params: BeamSearchParams | Sequence[BeamSearchParams],
        *,
        use_tqdm: bool = True,
    ) -> list[RequestOutput]:
        """Search the most probable answers; each output has up to `beam_width`, the one of the highest score first.

        Their `logprobs` are of every token, with those of its rivals. Sampling settings, also the model's defaults, do
        not apply. Raises RequestError naming the first prompt that cannot be served.
        """
        given = as_prompts(prompts)
        each_params = spread(params, len(given), BeamSearchParams, "params")
        token_ids = [
            self.tokenizer.encode(each) if isinstance(each, str) else checked_token_ids(each) for each in given
        ]
        searches = PromptSearches(token_ids, each_params, self.description, self.tokenizer)
        return search_beams(token_ids, searches, partial(self.generate, use_tqdm=False), use_tqdm=use_tqdm)

    def stream(
        self,
        prompt: Prompt | Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        lora_request: LoRARequest | None = None,
        trace: bool = False,
    ) -> Iterator[RequestOutput]:
        """Yield the deltas of one output as they are generated; a list of messages is a conversation."""
        if not isinstance(prompt, str) and prompt and isinstance(prompt[0], Mapping):
            prompt = self._chat_prompt(prompt, {})  # type: ignore[arg-type, assignment]
        request_id = self.add_request(prompt, sampling_params, lora_request=lora_request, trace=trace)  # type: ignore[arg-type]
        unread = self._requests[request_id].unread = deque()
        try:
            while unread or request_id in self._requests:
                if unread:
                    yield unread.popleft()
                    continue
                self.engine.check_running("stream")
                for advance in self._advance():
                    self._keep_for_step(advance)
        finally:
            self.abort(request_id)

    # Step by step

    def add_request(
        self,
        prompt: Prompt | Mapping[str, Any] | ImagePrompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        timeout_s: float | None = None,
        lora_request: LoRARequest | None = None,
        trace: bool = False,
    ) -> str:
        """Queue a prompt for `step` and return its id; raises RequestError for one that cannot be served."""
        self._check_open()
        check_request(request_id, timeout_s)
        request_id = request_id or self._new_request_id()
        if request_id in self._requests:
            raise InvalidParameter(f"request_id {request_id!r} is in use", "request_id")
        given = self._reader.read(prompt)
        text = given.prompt if isinstance(given.prompt, str) else None
        token_ids = checked_token_ids(given.prompt) if text is None else self.tokenizer.encode(text)
        params = sampling_params or self.get_default_sampling_params()
        params = params.with_tokenized_bad_words(bad_word_tokenizer(self.tokenizer))
        description = self.description
        params.check_leaves_a_token(
            description.eos_token_ids, description.vocab_size, never_generated=description.bad_token_sequences
        )
        request = GenerationRequest(
            request_id=request_id,
            prompt_token_ids=token_ids,
            sampling_params=params,
            priority=priority,
            timeout_s=timeout_s,
            adapter=None if lora_request is None else self._adapters.adapter_id(lora_request),
            adapter_folder="" if lora_request is None else lora_request.lora_path,
            trace=trace,
            images=given.images,
        )
        state = RequestState(StreamState(request, self.tokenizer), text)
        state.trace = RequestTrace() if trace else None
        self._requests[request_id] = state
        try:
            for part in state.stream.engine_requests():
                self.engine.add_request(part)
        except BaseException:
            self.abort(request_id)
            raise
        return request_id

    def step(self) -> list[RequestOutput]:
        """Compute one step of every scheduled request; returns the whole outputs of those with new tokens."""
        finished, self._finished_for_step = self._finished_for_step, []
        # Choices advance one by one: a request of several would be returned as often.
        advanced = {advance.delta.request_id: advance.state for advance in self._advance()}
        return finished + [state.whole() for state in advanced.values()]

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything left to compute or return."""
        return bool(self._requests or self._finished_for_step)

    def abort(self, request_id: str) -> None:
        """Abort a request and free its blocks; finished ones are ignored."""
        state = self._requests.pop(request_id, None)
        if state is not None:
            for part in state.stream.engine_requests():
                self.engine.abort(part.request_id)

    # Engine control

    def pause(self) -> None:
        """Let `step` compute nothing until `resume`; requests stay, and more are accepted."""
        self._check_open()
        self.engine.control(Pause())

    def resume(self) -> None:
        """Resume after `pause`."""
        self._check_open()
        self.engine.control(Resume())

    def sleep(self, level: int = 1) -> None:
        """Pause and free memory: level 0 none, 1 unused blocks (on a GPU all, to the host), 2 all.

        Raises WrongEngineState when it sleeps at another level, EngineDead when it fails: then this LLM is unusable.
        """
        self._check_open()
        self.engine.control(Sleep(level))

    def wake(self) -> None:
        """Allocate the memory again and continue as before `sleep`; raises EngineDead when that fails."""
        self._check_open()
        self.engine.control(Wake())

    @property
    def stats(self) -> EngineStats:
        """The engine's counters and gauges."""
        return self.engine.stats

    @property
    def description(self) -> ModelDescription:
        """The model's limits."""
        return self.engine.description

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters of requests without their own: the model's generation config."""
        return SamplingParams(**self.description.default_sampling_params)

    default_sampling_params = get_default_sampling_params

    def exit(self) -> None:
        """Abort all requests and free the engine's memory."""
        for request_id in list(self._requests):
            self.abort(request_id)
        self._is_closed = True
        self.engine.exit()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.exit()

    def _chat_prompt(self, messages: Sequence[Message], template_arguments: Mapping[str, Any]) -> ImagePrompt:
        read = self._reader.read_chat(messages, template_arguments)
        return ImagePrompt(self._tokenized(read.prompt), read.images)

    def _tokenized(self, prompt: Prompt) -> list[int]:
        assert isinstance(prompt, str), "a conversation is written as a text"
        return self.tokenizer.encode(prompt, add_special_tokens=False)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineDead("this LLM has exited")

    def _advance(self) -> list[StepOutput]:
        """Compute one step and apply its deltas; streams are given theirs here."""
        advances = []
        for delta in self.engine.step():
            request_id = EngineRequestId.request_id_of(delta.request_id)
            state = self._requests.get(request_id)
            if state is None:
                continue
            output = state.apply(delta)
            state.add_engine_events(delta)
            for stopped in state.stream.stopped_request_ids():
                state.add_engine_events(self.engine.abort(stopped))
            if state.stream.is_finished:
                del self._requests[request_id]
            if output is not None and state.unread is not None:
                state.unread.append(state.with_trace(output))
            elif output is not None:
                advances.append(StepOutput(state, output))
        self.engine.take_block_events()  # routers read them; here they would add up
        return advances

    def _new_request_id(self) -> str:
        names = (f"request-{number}" for number in self._numbers)
        return next(name for name in names if name not in self._requests)

    def _finish_all(self, request_ids: Sequence[str], *, use_tqdm: bool) -> list[RequestOutput]:
        results: dict[str, RequestOutput] = {}
        wanted = set(request_ids)
        speed_column = TextColumn("{task.fields[speed]:.0f} tokens/s")
        columns = (MofNCompleteColumn(), TimeElapsedColumn(), speed_column)
        with deferral_installed(), progress_bar(*columns, shown=use_tqdm) as progress:
            task = progress.add_task("Generating", total=len(request_ids), speed=0.0)
            start, num_tokens = time.perf_counter(), 0
            while len(results) < len(wanted):
                for advance in self._advance():
                    num_tokens += sum(len(output.token_ids) for output in advance.delta.outputs)
                    if advance.delta.request_id not in wanted:
                        self._keep_for_step(advance)
                    elif advance.delta.finished:
                        results[advance.delta.request_id] = advance.state.whole()
                speed = num_tokens / (time.perf_counter() - start)
                progress.update(task, completed=len(results), speed=speed)
        return [results[request_id] for request_id in request_ids]

    def _keep_for_step(self, advance: StepOutput) -> None:
        if advance.delta.finished:
            self._finished_for_step.append(advance.state.whole())
