"""From a body's fields to SamplingParams; errors name the fields that the client used."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.structured_output import openai_form
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody, GenerationBody
from rayinfer.servers.request_limits import RequestLimits, check_items

DEFAULT_COMPLETION_TOKENS = 16

_SAME_NAME = (
    *("temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "min_tokens", "stop", "stop_token_ids", "allowed_token_ids", "bad_words"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens", "logprob_token_ids"),
    "speculation",
)


def completion_params(body: CompletionBody, model: ModelDescription, limits: RequestLimits) -> SamplingParams:
    """Build the settings of a completion; echoed prompts are scored like the answers. Raises InvalidParameter."""
    limits.check_num_logprobs("logprobs", body.logprobs)
    return _params(
        body,
        model,
        limits,
        default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        least_tokens=0 if body.echo else 1,
        logprobs=body.logprobs,
        echoed_logprobs=body.logprobs if body.echo else None,
    )


def chat_params(body: ChatCompletionBody, model: ModelDescription, limits: RequestLimits) -> SamplingParams:
    """Build the settings of a chat completion; raises InvalidParameter."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter("top_logprobs is only allowed with logprobs=true.", "top_logprobs")
    limits.check_num_logprobs("top_logprobs", body.top_logprobs)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _params(body, model, limits, default_max_tokens=None, logprobs=logprobs)


def check_num_logprobs(
    params: SamplingParams,
    prompts: Sequence[Sequence[int]],
    model: ModelDescription,
    limits: RequestLimits,
    *,
    echoes: bool,
    stream: bool,
) -> None:
    """Refuse answers whose log probabilities would fill the memory: those of prompts, and of choices that are kept.

    Every choice repeats an echoed prompt's; a stream keeps nothing.
    """
    num_prompt_tokens = sum(map(len, prompts)) * (params.n if echoes else 1)
    if params.prompt_logprobs is not None:
        field = "logprobs" if echoes else "prompt_logprobs"
        num_top = params.prompt_logprobs if params.prompt_logprobs >= 0 else model.vocab_size
        _check_count(field, num_prompt_tokens, num_top, limits.max_prompt_logprobs, "prompts")
    if params.logprobs is not None and not stream:
        longest = model.max_model_len if params.max_tokens is None else min(params.max_tokens, model.max_model_len)
        num_tokens = longest * params.n * len(prompts)
        num_top = params.logprobs + len(params.listed_ids)
        _check_count("logprobs", num_tokens, num_top, limits.max_response_logprobs, "answers")


def check_num_repeated(
    body: GenerationBody,
    num_choices: int,
    prompts: Sequence[Sequence[int]],
    echoed_texts: Sequence[str] | None,
    limits: RequestLimits,
) -> None:
    """Refuse answers whose choices would repeat more of their prompts than a router can send beside other streams."""
    num_chars = num_choices * sum(map(len, echoed_texts or ()))
    if num_chars > limits.max_repeated_chars:
        raise InvalidParameter(
            f"echo: the answer would repeat {num_chars} characters of prompts in all choices, "
            f"at most {limits.max_repeated_chars} fit into it",
            "echo",
        )
    num_ids = num_choices * sum(map(len, prompts)) if body.return_token_ids else 0
    if num_ids > limits.max_repeated_token_ids:
        raise InvalidParameter(
            f"return_token_ids: the answer would repeat {num_ids} token ids of prompts in all choices, "
            f"at most {limits.max_repeated_token_ids} fit into it",
            "return_token_ids",
        )


def _check_count(field: str, num_tokens: int, num_top: int, limit: int, of: str) -> None:
    if num_tokens * (1 + num_top) > limit:
        raise InvalidParameter(
            f"{field}: log probabilities of up to {num_tokens} tokens of {of}, with {num_top} top tokens each; "
            f"at most {limit} log probabilities fit into it",
            field,
        )


def _params(
    body: GenerationBody,
    model: ModelDescription,
    limits: RequestLimits,
    *,
    default_max_tokens: int | None,
    least_tokens: int = 1,
    logprobs: int | None,
    echoed_logprobs: int | None = None,
) -> SamplingParams:
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidParameter("prompt_logprobs is not supported in streams.", "prompt_logprobs")
    limits.check_num_logprobs("prompt_logprobs", body.prompt_logprobs, least=-1)
    limits.check_n(body.n)
    num_choices = _num_choices(body, limits)
    if logprobs is None and body.is_best_of:
        logprobs = 0  # of the tokens alone: choices are compared by them
    check_items("logprob_token_ids", body.logprob_token_ids or (), limits.max_logprob_token_ids)
    if body.logprob_token_ids and logprobs is None:
        raise InvalidParameter("logprob_token_ids is only allowed with logprobs.", "logprob_token_ids")
    wanted = [count for count in (body.prompt_logprobs, echoed_logprobs) if count is not None]
    given = {field: value for field in _SAME_NAME if (value := getattr(body, field)) is not None}
    settings = {
        **model.default_sampling_params,
        **given,
        "n": num_choices,
        "max_tokens": _within(
            model.default_sampling_params.get("max_tokens"), _max_tokens(body, default_max_tokens, least=least_tokens)
        ),
    }
    params = SamplingParams(
        **settings,
        logit_bias=_logit_bias(body.logit_bias, limits),
        logprobs=logprobs,
        structured_outputs=openai_form(body.response_format, body.structured_outputs),
        prompt_logprobs=-1 if -1 in wanted else max(wanted, default=None),
    )
    limits.check_params(params)
    params.check_vocabulary(model.vocab_size)
    return params


def _num_choices(body: GenerationBody, limits: RequestLimits) -> int:
    """Return how many choices of a prompt are computed."""
    if body.best_of is None:
        return body.num_returned
    if not body.num_returned <= body.best_of <= limits.max_n:
        allowed = f"from n ({body.num_returned}) to {limits.max_n}"
        raise InvalidParameter(f"best_of must be an integer {allowed}, got {body.best_of}", "best_of")
    if body.stream and body.is_best_of:
        raise InvalidParameter("best_of must be n in a stream: the best choices are known at the end.", "best_of")
    return body.best_of


def _max_tokens(body: GenerationBody, default: int | None, *, least: int) -> int | None:
    field = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    limit: int | None = getattr(body, field)
    if limit is None:
        return default
    if not least <= limit < 2**31:
        hint = " (0 is for prompts that are only scored: it needs echo=true)" if limit == 0 else ""
        raise InvalidParameter(f"{field} must be an integer from {least} to {2**31 - 1}, got {limit}{hint}", field)
    return limit


def _within(model_limit: int | None, limit: int | None) -> int | None:
    """Apply a model's own limit to answers, as vLLM's server does: whatever a request names, it gets no more."""
    return min((each for each in (model_limit, limit) if each is not None), default=None)


def _logit_bias(biases: Mapping[str, Any] | None, limits: RequestLimits) -> dict[int, float] | None:
    if not biases:
        return None
    if len(biases) > limits.max_logit_bias:
        raise InvalidParameter(
            f"logit_bias must hold at most {limits.max_logit_bias} tokens, got {len(biases)}", "logit_bias"
        )
    for key in biases:
        if not (key.isascii() and key.isdigit() and str(int(key[:20])) == key):
            raise InvalidParameter(f'logit_bias must have token ids like "42" as keys, got {key!r:.80}', "logit_bias")
    return {int(key): bias for key, bias in biases.items()}
