"""The form of a chat's answers: where reasoning and tool calls stand in them, and the grammar that holds them to it."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.grammars.spec import StructuredOutputsParams
from rayinfer.sampling_params import SamplingParams
from rayinfer.tokenization.chat_template import ChatTemplate
from rayinfer.tokenization.tokenizer import Tokenizer
from rayinfer.tool_calls.answer_parser import AnswerParser, ReasoningTags
from rayinfer.tool_calls.call_grammars import call_grammar
from rayinfer.tool_calls.detection import begins_in_reasoning, detect_format, detect_reasoning
from rayinfer.tool_calls.formats import FORMATS, ToolFormat
from rayinfer.tool_calls.histories import template_history
from rayinfer.tool_calls.tools import ToolChoice

_NO_CALLS = ToolFormat(name="none")
_JSON_OBJECT = '{"type":"object"}'


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerForm:
    """The format of a model's calls, the tags of its reasoning, and the tools that an answer may call."""

    tool_format: ToolFormat
    tags: ReasoningTags | None
    choice: ToolChoice | None
    special_tokens: tuple[str, ...]
    end_tokens: tuple[str, ...]  # that may end texts in which special tokens are kept
    has_token_tags: bool = False  # reasoning stands between special tokens

    @classmethod
    def of(
        cls, template: ChatTemplate, format_name: str | None, choice: ToolChoice | None, tokenizer: Tokenizer
    ) -> "AnswerForm":
        """Find the form by the name of a format, if there is one, and the text of the template."""
        detected, tags = _detected(template.text_for(has_tools=choice is not None))
        tool_format = FORMATS[format_name] if format_name else detected
        if tool_format.is_harmony:
            tags = None
        special_tokens = tokenizer.special_texts
        return cls(
            tool_format=tool_format,
            tags=tags,
            choice=choice,
            special_tokens=special_tokens,
            end_tokens=tuple(set(tokenizer.special_tokens.values())),
            has_token_tags=tags is not None and tags.end in special_tokens,
        )

    def render(self, template: ChatTemplate, messages: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> str:
        """Write the prompt with the tools, which a template that knows none gets in a system prompt.

        Raises InvalidParameter.
        """
        tools = [tool.definition for tool in self.choice.tools] if self.choice is not None else []
        history = template_history(messages, tools, self.tool_format)
        shown: dict[str, Any] = {} if self.choice is None or self.tool_format.is_prompted else {"tools": tools}
        return template.render(history, **settings, **shown)

    def begins_in_reasoning(self, prompt: str) -> bool:
        """Return whether a prompt ends within reasoning."""
        return self.tags is not None and begins_in_reasoning(prompt, self.tags)

    def constrained(self, params: SamplingParams, prompt: str, field: str) -> "ConstrainedAnswer":
        """Return settings that hold answers to the form, and the format of the calls in them.

        `field` is what asks for structured outputs. Raises InvalidParameter.
        """
        spec, tool_format = params.structured_outputs, self.tool_format
        if self.choice is not None and (self.choice.is_constrained or spec is not None):
            is_required = self.choice.mode == "required"
            if is_required and spec is not None and field == "structured_outputs":
                raise InvalidParameter("structured_outputs is not allowed beside a required or named call", field)
            other = None if is_required else _answer_schema(spec, field)
            grammar = call_grammar(tool_format, self.choice, self.special_tokens, other_answer=other)
            spec, tool_format = StructuredOutputsParams(grammar=grammar.lark), grammar.tool_format
            field = "tools"
        if spec is not None and self.tags is not None:
            tags = (self.tags.begin, self.tags.end)
            spec = replace(spec, reasoning_tags=tags, begins_in_reasoning=self.begins_in_reasoning(prompt))
        shows_tokens = self._shows_tokens(tool_format)
        if spec == params.structured_outputs and not (shows_tokens and params.skip_special_tokens):
            return ConstrainedAnswer(params, tool_format, field)
        try:
            changed = replace(
                params,
                structured_outputs=spec,
                skip_special_tokens=params.skip_special_tokens and not shows_tokens,
            )
        except InvalidParameter as error:
            raise InvalidParameter(
                error.message.replace("structured_outputs", field), error.param, error.code
            ) from None
        return ConstrainedAnswer(changed, tool_format, field)

    def new_parser(self, tool_format: ToolFormat, *, begins_inside: bool) -> AnswerParser | None:
        """Begin to parse one answer; None where all of it is text."""
        if self.choice is None and not self.tool_format.is_harmony:
            if self.tags is None:
                return None
            tool_format = _NO_CALLS
        if self._shows_tokens(tool_format):
            tool_format = tool_format.without_tokens(self.end_tokens)
        return AnswerParser(
            tool_format,
            None if self.choice is None else self.choice.schemas,
            self.tags,
            begins_in_reasoning=begins_inside,
            max_calls=None if self.choice is None else self.choice.max_calls,
        )

    def _shows_tokens(self, tool_format: ToolFormat) -> bool:
        """Return whether reasoning or calls stand between special tokens, which texts usually lack."""
        if tool_format.is_harmony or self.has_token_tags:
            return True
        return self.choice is not None and any(marker in self.special_tokens for marker in tool_format.openers)


@dataclass(frozen=True, slots=True)
class ConstrainedAnswer:
    """Settings of an answer, the format of its calls, and the field that asks for its grammar."""

    params: SamplingParams
    tool_format: ToolFormat
    field: str


@functools.lru_cache(maxsize=64)
def _detected(template: str | None) -> tuple[ToolFormat, ReasoningTags | None]:
    return detect_format(template), detect_reasoning(template)


def _answer_schema(spec: StructuredOutputsParams | None, field: str) -> str | None:
    """Return the schema of answers without calls; raises InvalidParameter for another kind of grammar."""
    if spec is None:
        return None
    if spec.json_object:
        return _JSON_OBJECT
    if spec.json is None:
        raise InvalidParameter(
            f"{field} must be a JSON schema or JSON objects beside tools, unless tool_choice is none", field
        )
    assert isinstance(spec.json, str)
    return spec.json
