"""Sampling settings of protocols that have few of them; errors name the fields that the client used."""

from collections.abc import Mapping
from typing import Any

from rayinfer.errors import InvalidParameter
from rayinfer.protocols import ModelDescription
from rayinfer.sampling_params import SamplingParams
from rayinfer.servers.generation.structured_output import openai_form
from rayinfer.servers.request_limits import RequestLimits


def single_params(
    model: ModelDescription,
    limits: RequestLimits,
    given: Mapping[str, Any],
    *,
    max_tokens: int | None,
    names: Mapping[str, str],
    response_format: Mapping[str, Any] | None = None,
) -> SamplingParams:
    """Build the settings of a request with one choice from the model's defaults and what is given beside None.

    `names` are the client's, by field of SamplingParams; `response_format` has OpenAI's form. Raises InvalidParameter.
    """
    defaults = model.default_sampling_params
    known = {field: value for field, value in given.items() if value is not None}
    lengths = [each for each in (defaults.get("max_tokens"), max_tokens) if each is not None]
    settings = {**defaults, **known, "n": 1, "max_tokens": min(lengths, default=None)}
    try:
        params = SamplingParams(**settings, structured_outputs=openai_form(response_format, None))
        limits.check_params(params)
    except InvalidParameter as error:
        field = error.param or ""
        if field not in names:
            raise
        raise InvalidParameter(error.message.replace(field, names[field], 1), names[field], error.code) from None
    return params
