"""The request bodies: which fields we know and of which type; ranges are checked where each value is used."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams

MAX_PRIORITY = 10
MAX_SALT_CHARS = 128
MAX_LIST_ITEMS = 4096  # messages of a conversation, parts of all of them, token ids that stop

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
_SAMPLING_FIELDS = (
    *("n", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"),
    *("seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
    "skip_special_tokens",
)

# A long list of wrong values makes one finding, not one for each of them, and what is too long is not read to its end.
Texts = Annotated[list[str], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]
TokenIds = Annotated[list[int], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]
ContentParts = Annotated[list[dict[str, Any]], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())


class StreamOptions(_Strict):
    """What a stream tells besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(_Strict):
    """What completions and chat completions have in common; null means the default everywhere."""

    model: str | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | Texts | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: TokenIds | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    add_special_tokens: bool | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None

    def sampling_params(self, default_max_tokens: int | None) -> SamplingParams:
        """Build the sampling settings; raises InvalidParameter for values outside their range."""
        given = {field: value for field in _SAMPLING_FIELDS if (value := getattr(self, field)) is not None}
        limits = (self.max_completion_tokens, self.max_tokens, default_max_tokens)
        max_tokens = next((limit for limit in limits if limit is not None), None)
        try:
            if max_tokens == 0:  # a prompt that is only scored, for which no endpoint has a word yet
                raise InvalidParameter("max_tokens must be an integer from 1 to 2147483647, got 0", "max_tokens")
            return SamplingParams(max_tokens=max_tokens, **given)
        except InvalidParameter as error:
            if error.param != "max_tokens" or self.max_completion_tokens is None:
                raise
            message = error.message.replace("max_tokens", "max_completion_tokens", 1)
            raise InvalidParameter(message, "max_completion_tokens") from None

    def check_ranges(self, vocab_size: int) -> None:
        """Check what belongs to no sampling setting; raises InvalidParameter."""
        if self.stream_options is not None and not self.stream:
            raise InvalidParameter("stream_options is only allowed with stream=true.", "stream_options")
        if not -MAX_PRIORITY <= (self.priority or 0) <= MAX_PRIORITY:
            raise InvalidParameter(
                f"priority must be an integer from {-MAX_PRIORITY} to {MAX_PRIORITY}, got {self.priority}", "priority"
            )
        salt = self.cache_salt
        if salt is not None and (not 1 <= len(salt) <= MAX_SALT_CHARS or any(char in salt for char in "@/\\\0")):
            raise InvalidParameter(
                f"cache_salt must hold 1 to {MAX_SALT_CHARS} characters, none of them @ / \\ or NUL", "cache_salt"
            )
        for token_id in self.stop_token_ids or ():
            if not 0 <= token_id < vocab_size:
                raise InvalidParameter(
                    f"stop_token_ids must lie in the vocabulary, 0 to {vocab_size - 1}, got {token_id}",
                    "stop_token_ids",
                )


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: Annotated[Any, WithJsonSchema(_PROMPT_SCHEMA)]


class ChatMessage(_Strict):
    """One turn of a conversation; what else a message holds goes to the chat template as it is."""

    model_config = ConfigDict(strict=True, extra="allow", protected_namespaces=())

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | ContentParts | None = None


class ChatCompletionBody(GenerationBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(fail_fast=True, max_length=MAX_LIST_ITEMS)]
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
