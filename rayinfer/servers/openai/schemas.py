"""The request bodies: which fields we know and of which type; ranges are checked where each value is used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from rayinfer.errors import InvalidParameter
from rayinfer.priority_queue import BACKGROUND_PRIORITY
from rayinfer.sampling_params import MAX_DRAFT_TOKENS
from rayinfer.tokenization.truncation import TruncationSide
from rayinfer.tool_calls.tools import MAX_TOOLS, NAME_PATTERN

MAX_PRIORITY = BACKGROUND_PRIORITY
MAX_SALT_CHARS = 128
SALT_SCHEMA = {"type": "string", "minLength": 1, "maxLength": MAX_SALT_CHARS, "pattern": r"^[^@/\\\x00]+$"}
MAX_LIST_ITEMS = 4096  # messages of a conversation, parts of all of them, token ids that stop or are allowed
MAX_TEMPLATE_ARGUMENTS = 64
MAX_MESSAGE_FIELDS = 64
MAX_METADATA_ITEMS = 16

_PROMPT_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}},
        },
    ]
}


def _integral(value: Any) -> Any:
    """Take 16.0 for 16, as JSON does, which has no integers."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Integer = Annotated[int, BeforeValidator(_integral)]
# A long list of wrong values makes one finding, not one for each of them, and what is too long is not read to its end.
Texts = Annotated[list[str], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]
TokenIds = Annotated[list[Integer], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]
# Which values are wrong is found out one by one where they are used, again so that many make one finding.
LogitBias = Annotated[dict[str, Any], WithJsonSchema({"type": "object", "additionalProperties": {"type": "number"}})]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]

_FORMATS_SCHEMA = {
    "type": "object",
    "required": ["type"],
    "properties": {
        "type": {"enum": ["text", "json_object", "json_schema"]},
        "json_schema": {
            "type": "object",
            "required": ["schema"],
            "properties": {"schema": {"type": "object"}, "name": {"type": "string"}},
        },
    },
}
_FORMS_SCHEMA = {
    "type": "object",
    "minProperties": 1,
    "properties": {
        "json": {"type": ["object", "string"]},
        "regex": {"type": "string", "minLength": 1},
        "choice": {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
        "grammar": {"type": "string", "minLength": 1},
        "json_object": {"type": "boolean"},
        "structural_tag": {"type": ["object", "string"]},
        "disable_any_whitespace": {"type": "boolean"},
    },
    "additionalProperties": False,
}
_TOOL_SCHEMA = {
    "type": "object",
    "required": ["type", "function"],
    "properties": {
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": f"^{NAME_PATTERN}$"},
                "description": {"type": ["string", "null"]},
                "parameters": {"type": ["object", "null"]},
                "strict": {"type": ["boolean", "null"]},
            },
        },
    },
}
_TOOL_CHOICE_SCHEMA = {
    "anyOf": [
        {"enum": ["none", "auto", "required"]},
        {
            "type": "object",
            "required": ["type", "function"],
            "properties": {
                "type": {"const": "function"},
                "function": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
            },
        },
        {
            "type": "object",
            "required": ["type", "allowed_tools"],
            "properties": {"type": {"const": "allowed_tools"}, "allowed_tools": {"type": "object"}},
        },
    ]
}
Tools = Annotated[Objects, WithJsonSchema({"type": "array", "maxItems": MAX_TOOLS, "items": _TOOL_SCHEMA})]
ToolChoice = Annotated[str | dict[str, Any], WithJsonSchema(_TOOL_CHOICE_SCHEMA)]
ResponseFormat = Annotated[dict[str, Any], WithJsonSchema(_FORMATS_SCHEMA)]
StructuredOutputs = Annotated[dict[str, Any], WithJsonSchema(_FORMS_SCHEMA)]
TemplateArguments = Annotated[dict[str, Any], Field(max_length=MAX_TEMPLATE_ARGUMENTS)]
Metadata = Annotated[dict[str, str], Field(max_length=MAX_METADATA_ITEMS)]
SpeculationField = Annotated[
    str | Integer,
    WithJsonSchema(
        {"anyOf": [{"enum": ["auto", "off"]}, {"type": "integer", "minimum": 1, "maximum": MAX_DRAFT_TOKENS}]}
    ),
]
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class StreamOptions(_Strict):
    """Options of a stream."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # has no effect


class PromptBody(_Strict):
    """Fields of every body with a prompt; null means the default everywhere."""

    model: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: Integer | None = None  # tokens to keep; -1: as many as fit
    truncation_side: TruncationSide | None = None  # where tokens are removed; left is the default


class ChatMessage(_Strict):
    """One message of a conversation; further fields go to the chat template as they are."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Objects | None = None
    tool_calls: Objects | None = None


class ConversationBody(PromptBody):
    """Fields of every body with a conversation."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None  # in place of the model's; only where the service trusts its clients
    chat_template_kwargs: TemplateArguments | None = None
    documents: Objects | None = None  # go to the chat template as they are
    reasoning_effort: ReasoningEffort | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


class GenerationBody(PromptBody):
    """Fields of both completions and chat completions."""

    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    n: Integer | None = None
    best_of: Integer | None = None  # choices of which the n best are returned
    temperature: float | None = None
    top_p: float | None = None
    stop: str | Texts | None = None
    seed: Integer | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    typical_p: float | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Texts | None = None
    repetition_penalty: float | None = None
    min_tokens: Integer | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    priority: Integer | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    prompt_logprobs: Integer | None = None  # -1: of the whole vocabulary
    logprob_token_ids: TokenIds | None = None
    use_beam_search: bool | None = None  # vLLM's; `n` is the width
    length_penalty: float | None = None  # beside it
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None  # vLLM's
    speculation: SpeculationField | None = None  # tokens to draft in a step; answers are the same
    service_tier: str | None = None  # there is one, "default"
    # These have no effect.
    metadata: Metadata | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    store: bool | None = None
    user: str | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def check_ranges(self) -> None:
        """Check what belongs to no sampling setting; raises InvalidParameter."""
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter("stream_options is only allowed with stream=true.", "stream_options")
        check_priority(self.priority)
        check_cache_salt(self.cache_salt)

    @property
    def num_returned(self) -> int:
        """Choices of a prompt that the response has."""
        return 1 if self.n is None else self.n

    @property
    def is_best_of(self) -> bool:
        """Whether more choices are computed than are returned."""
        return self.best_of is not None and self.best_of > self.num_returned

    @property
    def form_field(self) -> str:
        """The field that says what form the answer has."""
        return "response_format" if self.structured_outputs is None else "structured_outputs"

    @property
    def length_field(self) -> str | None:
        """The field that names the most tokens of an answer; None where none does."""
        names = ("max_completion_tokens", "max_tokens")
        return next((name for name in names if getattr(self, name) is not None), None)


def check_priority(priority: int | None) -> None:
    """Raise InvalidParameter for a priority out of range."""
    if not -MAX_PRIORITY <= (priority or 0) <= MAX_PRIORITY:
        raise InvalidParameter(
            f"priority must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {priority}", "priority"
        )


def check_cache_salt(salt: str | None) -> None:
    """Raise InvalidParameter for a salt of a wrong length or with reserved characters."""
    if salt is not None and (not 1 <= len(salt) <= MAX_SALT_CHARS or any(char in salt for char in "@/\\\0")):
        raise InvalidParameter(
            f"cache_salt must hold 1 to {MAX_SALT_CHARS} characters, none of them @ / \\ or NUL", "cache_salt"
        )


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]
    echo: bool | None = None
    logprobs: Integer | None = None


class ChatCompletionBody(ConversationBody, GenerationBody):
    """POST /v1/chat/completions."""

    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    include_reasoning: bool | None = None  # vLLM's; true is the default

    def check_ranges(self) -> None:
        """Check what belongs to no sampling setting; raises InvalidParameter."""
        GenerationBody.check_ranges(self)
        if self.tools is not None and not self.tools:  # as OpenAI and vLLM answer
            raise InvalidParameter("tools must hold at least one tool, or be left out", "tools")


class TokenizePromptBody(PromptBody):
    """POST /tokenize of a text."""

    prompt: str
    return_token_strs: bool | None = None


class TokenizeChatBody(ConversationBody):
    """POST /tokenize of a conversation."""

    return_token_strs: bool | None = None


class DetokenizeBody(_Strict):
    """POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[Any], WithJsonSchema({"type": "array", "items": {"type": "integer", "minimum": 0}})]
