"""One validated request of TGI's protocol, made from its body; errors name the client's fields."""

import secrets
from dataclasses import dataclass

from rayinfer.errors import InvalidParameter, PromptTooLong, shown
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.prompt_tokens import PromptLimit, tokenize_prompts
from rayinfer.servers.generation.service import PreparedGeneration
from rayinfer.servers.generation.structured_output import tgi_form
from rayinfer.servers.openai.sampling_settings import check_num_logprobs
from rayinfer.servers.request_limits import RequestLimits
from rayinfer.servers.served_model import ServedModel
from rayinfer.servers.tgi.schemas import GenerateBody, GenerateParameters

DEFAULT_NEW_TOKENS = 1024  # at most, and no more than the context leaves
MAX_TRUNCATED_TOKENS = 2**18  # before truncation: lists of more take long
FORM_FIELD = "grammar"

_SAME_NAME = (
    *("temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "frequency_penalty"),
    "speculation",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TgiGeneration:
    """A prompt with its settings, and the form of the response."""

    model: ServedModel
    params: SamplingParams
    prompt: list[int]
    num_input_chars: int
    preceding_text: str  # the prompt, where the response repeats it
    with_details: bool
    with_prefill: bool
    num_top_tokens: int  # 0 for none
    seed: int | None  # that the response names
    length_field: str | None

    def prepared(self) -> PreparedGeneration:
        """Return what the service generates from."""
        return PreparedGeneration(
            model=self.model,
            params=self.params,
            prompts=[self.prompt],
            length_field=self.length_field,
            form_field=FORM_FIELD,
        )


def make_generation(
    body: GenerateBody,
    model: ServedModel,
    limits: RequestLimits,
    *,
    stream: bool,
    returns_full_text: bool = False,
) -> TgiGeneration:
    """Check a body against a model and tokenize its prompt; raises RequestError."""
    settings = body.parameters or GenerateParameters()
    _refuse_unsupported(settings)
    _check_form(settings, limits, stream=stream)
    description = model.generator.describe()
    prompt = input_token_ids(body, model, description)
    params = _sampling_params(settings, description, len(prompt), stream=stream)
    repeats = returns_full_text if settings.return_full_text is None else settings.return_full_text
    if repeats and len(body.inputs) * params.n > limits.max_repeated_chars:
        raise InvalidParameter(
            f"return_full_text: all sequences together may repeat {limits.max_repeated_chars} characters of inputs, "
            f"got {len(body.inputs) * params.n}",
            "return_full_text",
        )
    check_num_logprobs(params, [prompt], description, limits, echoes=False, stream=stream)
    return TgiGeneration(
        model=model,
        params=params,
        prompt=prompt,
        num_input_chars=len(body.inputs),
        preceding_text=body.inputs if repeats else "",
        with_details=bool(settings.details or settings.decoder_input_details),
        with_prefill=bool(settings.decoder_input_details),
        num_top_tokens=settings.top_n_tokens or 0,
        length_field=None if settings.max_new_tokens is None else "max_new_tokens",
        seed=params.seed if params.n == 1 else None,  # each of several sequences draws by its own
    )


def input_token_ids(body: GenerateBody, model: ServedModel, description: ModelDescription) -> list[int]:
    """Tokenize `inputs` and keep the last `truncate` tokens; raises InvalidParameter and PromptTooLong."""
    if not body.inputs:
        raise InvalidParameter("inputs must not be empty", "inputs")
    truncate = None if body.parameters is None else body.parameters.truncate
    limit = PromptLimit.of(description, "inputs")
    adds_special_tokens = body.add_special_tokens is not False
    if truncate is None:
        (token_ids,) = tokenize_prompts(
            [body.inputs], model.tokenizer, description.vocab_size, limit, add_special_tokens=adds_special_tokens
        )
        return token_ids
    check_integer("truncate", truncate, 1, limit.longest_prompt)
    token_ids = model.tokenizer.encode(
        body.inputs, add_special_tokens=adds_special_tokens, check_length=_check_truncated_length
    )[-truncate:]
    limit.check(len(token_ids))
    return token_ids


def _check_truncated_length(num_tokens: int) -> None:
    if num_tokens > MAX_TRUNCATED_TOKENS:
        raise PromptTooLong(
            f"inputs may have {MAX_TRUNCATED_TOKENS} tokens before they are truncated, got {num_tokens}", "inputs"
        )


def check_integer(name: str, value: int, low: int, high: int) -> None:
    """Raise InvalidParameter for a value out of range."""
    if not low <= value <= high:
        raise InvalidParameter(f"{name} must be an integer from {low} to {high}, got {shown(value)}", name)


def _refuse_unsupported(settings: GenerateParameters) -> None:
    if settings.watermark:
        raise InvalidParameter("watermark is not supported by this service.", "watermark", "unsupported_parameter")


def _check_form(settings: GenerateParameters, limits: RequestLimits, *, stream: bool) -> None:
    """Check what belongs to the response's form, and TGI's own ranges."""
    best_of = 1 if settings.best_of is None else settings.best_of
    check_integer("best_of", best_of, 1, limits.max_n)
    if stream and best_of > 1:
        raise InvalidParameter("best_of must be 1 in a stream", "best_of")
    if stream and settings.decoder_input_details:
        raise InvalidParameter("decoder_input_details is not supported in streams", "decoder_input_details")
    if best_of > 1 and not _samples(settings):
        raise InvalidParameter("best_of above 1 needs sampling, such as do_sample=true", "best_of")
    if best_of > 1 and settings.seed is not None:
        raise InvalidParameter("seed must not be set with best_of above 1", "seed")
    if settings.temperature is not None and settings.temperature <= 0:
        raise InvalidParameter(f"temperature must be above 0, got {settings.temperature}", "temperature")
    if settings.top_k is not None and settings.top_k <= 0:
        raise InvalidParameter(f"top_k must be above 0, got {shown(settings.top_k)}", "top_k")
    if settings.seed is not None:
        check_integer("seed", settings.seed, 0, 2**64 - 1)
    if settings.top_n_tokens is not None:
        check_integer("top_n_tokens", settings.top_n_tokens, 0, limits.max_logprobs)


def _samples(settings: GenerateParameters) -> bool:
    """Return whether tokens are drawn; as in TGI, a temperature of 1 alone leaves the choice greedy."""
    filters = (settings.top_k, settings.top_p, settings.typical_p)
    return bool(settings.do_sample) or settings.temperature not in (None, 1.0) or filters != (None, None, None)


def _sampling_params(
    settings: GenerateParameters, description: ModelDescription, num_prompt_tokens: int, *, stream: bool
) -> SamplingParams:
    is_random = _samples(settings)
    given = {name: value for name in _SAME_NAME if (value := getattr(settings, name)) is not None}
    seed = settings.seed
    if is_random and seed is None:
        seed = secrets.randbits(64)  # drawn here, as the response names it
    SamplingParams(**given)  # ranges hold for greedy requests as well
    if not is_random:
        given["temperature"] = 0.0
    best_of = settings.best_of or 1
    with_logprobs = stream or settings.details or settings.decoder_input_details or best_of > 1
    return SamplingParams(
        **given,
        n=best_of,
        seed=seed if is_random else None,
        max_tokens=_max_tokens(settings.max_new_tokens, description, num_prompt_tokens),
        stop=settings.stop or (),
        include_stop_str_in_output=True,  # TGI's texts end with it
        logprobs=(settings.top_n_tokens or 0) if with_logprobs else None,
        structured_outputs=tgi_form(settings.grammar),
        prompt_logprobs=0 if settings.decoder_input_details else None,
    )


def _max_tokens(wanted: int | None, description: ModelDescription, num_prompt_tokens: int) -> int:
    room = description.max_model_len - (num_prompt_tokens if description.scores_prompts else 0)
    model_limit = description.default_sampling_params.get("max_tokens") or room
    if wanted is None:
        return int(min(DEFAULT_NEW_TOKENS, room, model_limit))
    check_integer("max_new_tokens", wanted, 1, 2**31 - 1)
    if wanted > room:
        raise PromptTooLong(
            f"inputs tokens + max_new_tokens must be at most {description.max_model_len}: "
            f"{num_prompt_tokens} tokens of inputs and {wanted} new ones are too many",
            "max_new_tokens",
            "context_length_exceeded",
        )
    return int(min(wanted, model_limit))
