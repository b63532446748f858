"""Bodies of `PUT /api` and the validated requests made from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, WithJsonSchema

from rayinfer.errors import InvalidParameter, PromptTooLong, shown
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.prompt_tokens import PromptLimit, tokenize_prompts
from rayinfer.servers.generation.service import PreparedGeneration
from rayinfer.servers.openai.sampling_settings import check_num_logprobs
from rayinfer.servers.openai.schemas import Integer, Texts
from rayinfer.servers.openapi import ranged
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel
from rayinfer.tokenization.tokenizer import Tokenizer

MAX_PROMPTS = 128
MAX_TOP_K = 1000
DEFAULT_TOKENS = 64

# Fields that would change the response and are not supported, with the values that ask for nothing.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "beam_width": (None,),
    "top_p_decay": (None, 0),
    "top_p_bound": (None, 0),
    "length_penalty": (None, 1),
}
_REPLACED = {"max_len": "tokens_to_generate", "sentences": "prompts"}


_PROMPTS = {"type": "array", "minItems": 1, "maxItems": MAX_PROMPTS, "items": {"type": "string", "minLength": 1}}


class MegatronBody(BaseModel):
    """PUT /api; null means the default everywhere.

    The OpenAPI document says less than is allowed where fields depend on each other or on the model.
    """

    model_config = ConfigDict(strict=True, extra="ignore", protected_namespaces=())

    prompts: Annotated[Texts, WithJsonSchema(_PROMPTS)]
    tokens_to_generate: Annotated[Integer | None, ranged("integer", minimum=1, maximum=1024)] = None
    logprobs: bool | None = None
    temperature: Annotated[float | None, ranged("number", minimum=0.01, maximum=100)] = None
    top_k: Annotated[Integer | None, ranged("integer", minimum=0, maximum=MAX_TOP_K)] = None
    top_p: Annotated[float | None, ranged("number", minimum=0, maximum=0)] = None  # top_k or top_p, as in Megatron
    top_p_decay: Annotated[float | None, ranged("number", minimum=0, maximum=0)] = None
    top_p_bound: Annotated[float | None, ranged("number", minimum=0, maximum=0)] = None
    length_penalty: Annotated[float | None, ranged("number", minimum=1, maximum=1)] = None
    beam_width: Annotated[Integer | None, WithJsonSchema({"type": "null"})] = None
    add_BOS: bool | None = None  # noqa: N815 - the protocol's name
    stop_on_eol: bool | None = None
    stop_on_double_eol: bool | None = None
    prevent_newline_after_colon: bool | None = None
    random_seed: Annotated[Integer | None, ranged("integer", minimum=0, maximum=2**64 - 1)] = None
    stop_token: Integer | None = None
    no_log: bool | None = None  # has no effect: prompts are never logged


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronGeneration:
    """Prompts with their common settings."""

    model: ServedModel
    params: SamplingParams
    texts: Sequence[str]
    prompts: Sequence[list[int]]
    length_field: str | None

    def prepared(self) -> PreparedGeneration:
        """Return what the service generates from."""
        return PreparedGeneration(
            model=self.model, params=self.params, prompts=self.prompts, length_field=self.length_field
        )


def refuse_unsupported_fields(raw: dict[str, Any]) -> None:
    """Raise InvalidParameter for the first field that asks for something else than this service does."""
    for field, instead in _REPLACED.items():
        if field in raw:
            raise InvalidParameter(f"{field} is not supported: use {instead}.", field, "unsupported_parameter")
    for field, neutral in _NEUTRAL.items():
        value = raw.get(field)
        if isinstance(value, bool) or value not in neutral:
            raise InvalidParameter(f"{field} is not supported by this service.", field, "unsupported_parameter")


def make_generation(body: MegatronBody, model: ServedModel, limits: RequestLimits) -> MegatronGeneration:
    """Check a body against a model and tokenize its prompts; raises RequestError."""
    description = model.generator.describe()
    if not 1 <= len(body.prompts) <= MAX_PROMPTS:
        raise InvalidParameter(f"prompts must hold 1 to {MAX_PROMPTS} texts, got {len(body.prompts)}", "prompts")
    params = _sampling_params(body, model.tokenizer, description)
    prompts = _tokenize(body, model.tokenizer, description, params)
    check_num_logprobs(params, prompts, description, limits, echoes=False, stream=False)
    length_field = None if body.tokens_to_generate is None else "tokens_to_generate"
    return MegatronGeneration(
        model=model, params=params, texts=body.prompts, prompts=prompts, length_field=length_field
    )


def _sampling_params(body: MegatronBody, tokenizer: Tokenizer, description: ModelDescription) -> SamplingParams:
    num_tokens = DEFAULT_TOKENS if body.tokens_to_generate is None else body.tokens_to_generate
    if num_tokens == 0 and not body.logprobs:
        raise InvalidParameter("tokens_to_generate=0 needs logprobs=true", "tokens_to_generate")
    if not 0 <= num_tokens < 2**31:
        raise InvalidParameter(
            f"tokens_to_generate must be an integer from 0 to {2**31 - 1}, got {shown(num_tokens)}",
            "tokens_to_generate",
        )
    if body.temperature is not None and body.temperature <= 0:
        raise InvalidParameter(f"temperature must be above 0, got {body.temperature}", "temperature")
    if not 0 <= (body.top_k or 0) <= MAX_TOP_K:
        raise InvalidParameter(f"top_k must be an integer from 0 to {MAX_TOP_K}, got {shown(body.top_k)}", "top_k")
    if body.top_k and body.top_p:
        raise InvalidParameter("top_k and top_p cannot both be set", "top_p")
    if not 0 <= (body.random_seed or 0) < 2**64:
        raise InvalidParameter(
            f"random_seed must be an integer from 0 to {2**64 - 1}, got {shown(body.random_seed)}", "random_seed"
        )
    if body.stop_token is not None and not 0 <= body.stop_token < description.vocab_size:
        raise InvalidParameter(
            f"stop_token must lie in the vocabulary, 0 to {description.vocab_size - 1}, got {shown(body.stop_token)}",
            "stop_token",
        )
    stops = {"\n": body.stop_on_eol, "\n\n": body.stop_on_double_eol}
    return SamplingParams(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=body.top_k or 0,
        top_p=body.top_p or 1.0,  # 0 switches it off
        seed=body.random_seed,
        max_tokens=num_tokens,
        stop=[text for text, is_wanted in stops.items() if is_wanted],
        include_stop_str_in_output=True,
        stop_token_ids=() if body.stop_token is None else [body.stop_token],
        bad_token_sequences=_newline_after_colon(tokenizer) if body.prevent_newline_after_colon else (),
        logprobs=0 if body.logprobs and num_tokens else None,
        prompt_logprobs=0 if body.logprobs else None,
    )


def _newline_after_colon(tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    colon, newline = (tokenizer.encode(text, add_special_tokens=False) for text in ":\n")
    if len(colon) != 1 or len(newline) != 1:
        raise InvalidParameter(
            "prevent_newline_after_colon needs a model with a token for each of the two characters",
            "prevent_newline_after_colon",
        )
    return [(colon[0], newline[0])]


def _tokenize(
    body: MegatronBody, tokenizer: Tokenizer, description: ModelDescription, params: SamplingParams
) -> list[list[int]]:
    limit = PromptLimit.of(description, "prompts", generates=params.max_tokens != 0)
    first = _first_token(tokenizer) if body.add_BOS else []
    if not first and not all(body.prompts):
        raise InvalidParameter("an empty text in prompts needs add_BOS=true", "prompts")
    prompts = [
        first + token_ids
        for text in body.prompts
        for token_ids in (
            tokenize_prompts([text], tokenizer, description.vocab_size, limit, add_special_tokens=False)
            if text
            else [[]]
        )
    ]
    longest, room = max(map(len, prompts)), description.max_model_len if description.scores_prompts else 2**31
    limit.check(longest)
    if longest + (params.max_tokens or 0) > room:
        raise PromptTooLong(
            f"This model's maximum context length is {description.max_model_len} tokens: "
            f"{longest} tokens of a prompt and tokens_to_generate={params.max_tokens} are too many.",
            "tokens_to_generate",
            "context_length_exceeded",
        )
    return prompts


def _first_token(tokenizer: Tokenizer) -> list[int]:
    """Return the token that begins a text, or as in Megatron the one that ends a text where there is none."""
    token_id = tokenizer.eos_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    if token_id is None:
        raise InvalidParameter("add_BOS is not supported: the model has no token that begins a text", "add_BOS")
    return [token_id]
