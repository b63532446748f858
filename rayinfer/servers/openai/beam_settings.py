"""`use_beam_search` of completions and chat completions, under vLLM's names: `n` is the width."""

from collections.abc import Mapping, Sequence
from typing import Any

from rayinfer.beam_search.search import BeamSearchParams
from rayinfer.errors import InvalidParameter
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.openai.schemas import GenerationBody
from rayinfer.servers.request_limits import RequestLimits

# What a body may hold beside use_beam_search: the log probabilities are the model's own, and nothing is drawn.
NEUTRAL_BESIDE_BEAMS: Mapping[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "temperature": (None, 0, 1),
    "top_p": (None, 1),
    "top_k": (None, 0, -1),
    "min_p": (None, 0),
    "typical_p": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "min_tokens": (None, 0),
    "logit_bias": (None, {}),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "stop": (None, []),
    "prompt_logprobs": (None,),
    "logprob_token_ids": (None, []),
    "echo": (None, False),
    "response_format": (None,),
    "structured_outputs": (None,),
    "tools": (None,),
}


def beam_search_params(
    body: GenerationBody, params: SamplingParams, prompts: Sequence[Sequence[int]], limits: RequestLimits
) -> BeamSearchParams | None:
    """Return the settings of the search that a body asks for, if any; raises InvalidParameter."""
    if not body.use_beam_search:
        if body.length_penalty not in (None, 1):
            raise InvalidParameter("length_penalty is only allowed with use_beam_search=true.", "length_penalty")
        return None
    for field, neutral in NEUTRAL_BESIDE_BEAMS.items():
        value = getattr(body, field, None)
        if value not in neutral:
            raise InvalidParameter(f"{field} is not supported with use_beam_search.", field, "unsupported_parameter")
    if body.is_best_of:
        raise InvalidParameter("best_of must be n with use_beam_search.", "best_of", "unsupported_parameter")
    limits.check_beams(prompts, params.n)
    return BeamSearchParams(
        beam_width=params.n,
        max_tokens=2**31 - 1 if params.max_tokens is None else params.max_tokens,
        ignore_eos=params.ignore_eos,
        stop_token_ids=tuple(params.stop_ids),
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        skip_special_tokens=params.skip_special_tokens,
    )
