"""From a body's fields to SamplingParams; errors name the fields that the client used."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import MAX_BIASED_TOKENS, MAX_LOGPROBS, SamplingParams
from rayinfer.servers.openai.schemas import ChatCompletionBody, CompletionBody, GenerationBody

DEFAULT_COMPLETION_TOKENS = 16
# Of one request. Each takes a few hundred bytes until the answer is sent; those of prompts come all at once.
MAX_PROMPT_LOGPROBS = 2**18
MAX_OUTPUT_LOGPROBS = 2**22
# Of the prompts, in all choices of one answer, which the event loop sends in one piece.
MAX_REPEATED_CHARS = 2**22
MAX_REPEATED_TOKEN_IDS = 2**18

_SAME_NAME = (
    *("n", "temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty"),
    *("frequency_penalty", "seed", "min_tokens", "stop", "stop_token_ids", "allowed_token_ids", "bad_words"),
    *("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
)


def completion_params(body: CompletionBody, model: ModelDescription) -> SamplingParams:
    """Build the settings of a completion; echoed prompts are scored like the answers. Raises InvalidParameter."""
    _check_logprobs("logprobs", body.logprobs)
    return _params(
        body,
        model,
        default_max_tokens=DEFAULT_COMPLETION_TOKENS,
        least_tokens=0 if body.echo else 1,
        logprobs=body.logprobs,
        echoed_logprobs=body.logprobs if body.echo else None,
    )


def chat_params(body: ChatCompletionBody, model: ModelDescription) -> SamplingParams:
    """Build the settings of a chat completion; raises InvalidParameter."""
    if body.top_logprobs and not body.logprobs:
        raise InvalidParameter("top_logprobs is only allowed with logprobs=true.", "top_logprobs")
    _check_logprobs("top_logprobs", body.top_logprobs)
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return _params(body, model, default_max_tokens=None, logprobs=logprobs)


def check_num_logprobs(
    params: SamplingParams, prompts: Sequence[Sequence[int]], max_model_len: int, *, echoes: bool, stream: bool
) -> None:
    """Refuse answers whose log probabilities would fill the memory: those of prompts, and of choices that are kept.

    Every choice repeats an echoed prompt's; a stream keeps nothing.
    """
    num_prompt_tokens = sum(map(len, prompts)) * (params.n if echoes else 1)
    if params.prompt_logprobs is not None:
        field = "logprobs" if echoes else "prompt_logprobs"
        _check_count(field, num_prompt_tokens, params.prompt_logprobs, MAX_PROMPT_LOGPROBS, "prompts")
    if params.logprobs is not None and not stream:
        longest = max_model_len if params.max_tokens is None else min(params.max_tokens, max_model_len)
        num_tokens = longest * params.n * len(prompts)
        _check_count("logprobs", num_tokens, params.logprobs, MAX_OUTPUT_LOGPROBS, "answers")


def check_num_repeated(
    body: GenerationBody, num_choices: int, prompts: Sequence[Sequence[int]], echoed_texts: Sequence[str] | None
) -> None:
    """Refuse answers whose choices would repeat more of their prompts than a router can send beside other streams."""
    num_chars = num_choices * sum(map(len, echoed_texts or ()))
    if num_chars > MAX_REPEATED_CHARS:
        raise InvalidParameter(
            f"echo: the answer would repeat {num_chars} characters of prompts in all choices, "
            f"at most {MAX_REPEATED_CHARS} fit into it",
            "echo",
        )
    num_ids = num_choices * sum(map(len, prompts)) if body.return_token_ids else 0
    if num_ids > MAX_REPEATED_TOKEN_IDS:
        raise InvalidParameter(
            f"return_token_ids: the answer would repeat {num_ids} token ids of prompts in all choices, "
            f"at most {MAX_REPEATED_TOKEN_IDS} fit into it",
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
    *,
    default_max_tokens: int | None,
    least_tokens: int = 1,
    logprobs: int | None,
    echoed_logprobs: int | None = None,
) -> SamplingParams:
    if body.prompt_logprobs is not None and body.stream:
        raise InvalidParameter("prompt_logprobs is not supported in streams.", "prompt_logprobs")
    _check_logprobs("prompt_logprobs", body.prompt_logprobs)
    wanted = [count for count in (body.prompt_logprobs, echoed_logprobs) if count is not None]
    given = {field: value for field in _SAME_NAME if (value := getattr(body, field)) is not None}
    settings = {
        **model.default_sampling_params,
        **given,
        "max_tokens": _within(
            model.default_sampling_params.get("max_tokens"), _max_tokens(body, default_max_tokens, least=least_tokens)
        ),
    }
    params = SamplingParams(
        **settings,
        logit_bias=_logit_bias(body.logit_bias),
        logprobs=logprobs,
        prompt_logprobs=max(wanted, default=None),
    )
    params.check_vocabulary(model.vocab_size)
    return params


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


def _check_logprobs(field: str, count: int | None) -> None:
    if count is not None and not 0 <= count <= MAX_LOGPROBS:
        raise InvalidParameter(f"{field} must be an integer from 0 to {MAX_LOGPROBS}, got {count}", field)


def _logit_bias(biases: Mapping[str, Any] | None) -> dict[int, float] | None:
    if not biases:
        return None
    if len(biases) > MAX_BIASED_TOKENS:
        raise InvalidParameter(
            f"logit_bias must hold at most {MAX_BIASED_TOKENS} tokens, got {len(biases)}", "logit_bias"
        )
    for key in biases:
        if not (key.isascii() and key.isdigit() and str(int(key[:20])) == key):
            raise InvalidParameter(f'logit_bias must have token ids like "42" as keys, got {key!r:.80}', "logit_bias")
    return {int(key): bias for key, bias in biases.items()}
