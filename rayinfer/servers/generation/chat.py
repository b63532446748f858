"""The chat core: conversations to prompts, and outputs to answers, the same for every protocol.

A protocol turns its body into a `ChatRequest`: messages in the form that chat templates read, settings of the template,
tools and `SamplingParams`. `prepare_chat` renders and tokenizes it into a `PreparedChat`, whose `generation` goes to
`GenerationService.start` and whose `new_answer` begins a `ChatAnswer` for each choice. An answer turns the choice's
outputs into deltas, in the order in which the model wrote them:

    TextDelta       text of the answer
    ReasoningDelta  text of the reasoning before it
    ToolCallDelta   beginning of a call (`id` and `name`), or more of its arguments (`arguments`)

and adds them up: `text`, `reasoning`, `tool_calls`, `finish_reason`, `stop_reason`, `num_tokens`. Without a parser all
output is text. A parser is what splits reasoning and tool calls off: `PreparedChat.new_parser` makes one for each
choice, of the model's format (`AnswerForm`). Required calls, strict ones and structured outputs become a grammar in
`PreparedChat.params`.

`SingleAnswer` is the answer and usage of a request with one choice, as most protocols have it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from rayinfer.errors import InvalidParameter, RequestFailed
from rayinfer.outputs import CompletionOutput
from rayinfer.predictions import ImageInput
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.answer_form import AnswerForm
from rayinfer.servers.generation.chat_images import ChatImages
from rayinfer.servers.generation.prompt_outputs import PromptOutput, check_ended_well
from rayinfer.servers.generation.prompt_tokens import PromptLimit, tokenize_prompts
from rayinfer.servers.generation.service import GenerationService, PreparedGeneration
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.truncation import Truncation
from rayinfer.tool_calls.deltas import ChatDelta, ReasoningDelta, TextDelta, ToolCallDelta
from rayinfer.tool_calls.tools import read_tool_choice

ChatFinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(slots=True)
class ToolCall:
    """A tool call, as far as the model has written it."""

    id: str
    name: str
    arguments: str = ""

    def parsed_arguments(self) -> dict[str, Any]:
        """Return the arguments as an object; those of a call that was cut cannot be read, and are empty."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except ValueError:
            return {}
        return arguments if isinstance(arguments, dict) else {}


class ChoiceParser(Protocol):
    """An incremental parser of one choice's text, as `AnswerParser` is."""

    @property
    def num_reasoning_tokens(self) -> int:
        """Tokens of the reasoning so far."""
        ...

    def add(self, text: str, token_ids: Sequence[int]) -> Sequence[ChatDelta]:
        """Return the deltas that more text completes; what may still become a tag is held back."""
        ...

    def end(self) -> Sequence[ChatDelta]:
        """Return what was held back, at the end of the text."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatRequest:
    """A conversation and the settings of its answer."""

    model: ServedModel
    params: SamplingParams
    messages: Sequence[Mapping[str, Any]]  # with role and content, as chat templates read them
    template: ChatTemplate | None = None  # in place of the model's
    template_settings: Mapping[str, Any] = field(default_factory=dict)  # arguments of `ChatTemplate.render`
    tools: Sequence[Mapping[str, Any]] | None = None  # in OpenAI's form: {"type": "function", "function": {...}}
    tool_choice: str | Mapping[str, Any] | None = None  # "none", "auto", "required" or a tool in OpenAI's form
    parallel_tool_calls: bool = True
    shows_reasoning: bool = True
    add_special_tokens: bool = False
    truncation: Truncation | None = None
    messages_field: str = "messages"  # that errors name
    format_field: str = "response_format"  # likewise, for structured outputs
    length_field: str | None = None
    priority: int = 0
    cache_salt: str = ""


def _no_parser() -> None:
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedChat:
    """A conversation as the model reads it."""

    request: ChatRequest
    text: str  # written by the template
    prompt: list[int]
    params: SamplingParams
    form_field: str = "response_format"  # that asks for the form of the answers
    new_parser: Callable[[], ChoiceParser | None] = _no_parser
    images: tuple[ImageInput, ...] = ()

    @property
    def generation(self) -> PreparedGeneration:
        """The request for the service."""
        return PreparedGeneration(
            model=self.request.model,
            params=self.params,
            prompts=[self.prompt],
            length_field=self.request.length_field,
            priority=self.request.priority,
            cache_salt=self.request.cache_salt,
            operation="chat",
            form_field=self.form_field,
            images=self.images,
        )

    def new_answer(self) -> "ChatAnswer":
        """Begin the answer of one choice."""
        return ChatAnswer(self.new_parser(), shows_reasoning=self.request.shows_reasoning)


def prepare_chat(request: ChatRequest, service: GenerationService) -> PreparedChat:
    """Render a conversation, tokenize it and find what its answers are held to; raises RequestError."""
    model = request.model
    description = model.generator.describe()
    template = request.template or model.chat_template
    choice = read_tool_choice(request.tools, request.tool_choice, parallel=request.parallel_tool_calls)
    form = AnswerForm.of(template, model.tool_format, choice, model.tokenizer)
    chat = ChatImages.of(
        request.messages, model, service.limits, num_choices=request.params.n, field=request.messages_field
    )
    if chat.images and request.truncation is not None:
        raise InvalidParameter("truncate_prompt_tokens is not supported with images", "truncate_prompt_tokens")
    rendered = form.render(template, chat.messages, {**request.template_settings, **chat.template_settings})
    text = chat.expand(rendered, model, request.messages_field)
    (prompt,) = tokenize_prompts(
        [text],
        model.tokenizer,
        description.vocab_size,
        PromptLimit.of(description, request.messages_field),
        add_special_tokens=request.add_special_tokens,
        truncation=request.truncation,
    )
    answer = form.constrained(request.params, text, request.format_field)
    service.check_supports_grammars(model, answer.params, answer.field)
    new_parser = partial(form.new_parser, answer.tool_format, begins_inside=form.begins_in_reasoning(text))
    return PreparedChat(
        request=request,
        text=text,
        prompt=prompt,
        params=answer.params,
        form_field=answer.field,
        new_parser=new_parser,
        images=chat.inputs,
    )


class ChatAnswer:
    """The answer of one choice, in deltas and as a whole."""

    def __init__(self, parser: ChoiceParser | None = None, *, shows_reasoning: bool = True) -> None:
        self._parser = parser
        self._shows_reasoning = shows_reasoning
        self._texts: list[str] = []
        self._reasoning: list[str] = []
        self.tool_calls: list[ToolCall] = []
        self.num_tokens = 0
        self.finish_reason: ChatFinishReason | None = None
        self.stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """The reasoning so far."""
        return "".join(self._reasoning)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Tokens of the reasoning so far; None where no parser finds it."""
        return None if self._parser is None else self._parser.num_reasoning_tokens

    def add(self, output: CompletionOutput) -> Sequence[ChatDelta]:
        """Add an output and return its deltas, of which there may be none; raises the error of a failed choice."""
        check_ended_well(output)
        self.num_tokens += len(output.token_ids)
        if self._parser is None:
            deltas: list[ChatDelta] = [TextDelta(output.text)] if output.text else []
        else:
            deltas = list(self._parser.add(output.text, output.token_ids))
            if output.finish_reason is not None:
                deltas += self._parser.end()
        if not self._shows_reasoning:
            deltas = [delta for delta in deltas if not isinstance(delta, ReasoningDelta)]
        for delta in deltas:
            self._keep(delta)
        if output.finish_reason in ("stop", "length"):
            has_called = output.finish_reason == "stop" and bool(self.tool_calls)
            self.finish_reason = "tool_calls" if has_called else output.finish_reason
            self.stop_reason = output.stop_reason
        return deltas

    def _keep(self, delta: ChatDelta) -> None:
        match delta:
            case TextDelta():
                self._texts.append(delta.text)
            case ReasoningDelta():
                self._reasoning.append(delta.text)
            case ToolCallDelta():
                if delta.index == len(self.tool_calls):
                    self.tool_calls.append(ToolCall(delta.id or "", delta.name or ""))
                self.tool_calls[delta.index].arguments += delta.arguments


class FastEncoding:
    """Encoding that never takes milliseconds, so that it stays on the event loop."""

    is_long = False  # the whole answer
    has_slow_opening = False  # what precedes a stream's first output
    is_slow = False  # a stream's next output


class SingleAnswer(FastEncoding):
    """The answer and usage of a request with one choice; also the collector of a `WholeResponse`."""

    def __init__(self, chat: PreparedChat) -> None:
        self.answer = chat.new_answer()
        self.num_prompt_tokens = len(chat.prompt)
        self.num_cached_tokens = 0

    def add(self, prompt_output: PromptOutput) -> Sequence[ChatDelta]:
        """Add an output and return its deltas; raises the error of a failed choice."""
        self.num_cached_tokens = prompt_output.output.num_cached_tokens
        (completion,) = prompt_output.output.outputs
        return self.answer.add(completion)

    def check_is_complete(self) -> None:
        """Raise RequestFailed when the outputs ended before the answer had."""
        if self.answer.finish_reason is None:
            raise RequestFailed("the outputs ended before the answer had")
