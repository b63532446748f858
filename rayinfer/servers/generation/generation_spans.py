"""The span of a generation: OpenTelemetry's GenAI attributes, and vLLM's latencies in seconds."""

import asyncio
import time
from typing import TYPE_CHECKING

from rayinfer.access.generation_usage import GenerationUsage
from rayinfer.servers.caller import RequestContext
from rayinfer.servers.error_responses import refusal_reason
from rayinfer.traces.generation_span import Attribute, GenerationSpan

if TYPE_CHECKING:
    from rayinfer.servers.generation.service import PreparedGeneration

PROVIDER = "rayinfer"
CANCELLED = "cancelled"  # the client left, or its call was cancelled
_MAX_INT64 = 2**63 - 1  # the format has no larger integers
_BAD_ENDS = {"error": "generation_failed", "timeout": "timeout", "abort": "unavailable"}


def generation_span(
    context: RequestContext,
    generation: "PreparedGeneration",
    usage: GenerationUsage,
    *,
    response_id: str,
    dispatched_s: float | None,
    error: BaseException | None,
) -> GenerationSpan:
    """Describe a generation that ended now, with the exception that ended it."""
    end_s = time.time()
    received_s = context.identity.received_s
    model = generation.model.name
    reasons = [reason for _, reason in sorted(usage.finish_reasons.items())]
    attributes: dict[str, Attribute | None] = {
        "gen_ai.operation.name": generation.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": model,
        "gen_ai.response.model": model,
        "gen_ai.response.id": response_id,
        "gen_ai.response.finish_reasons": reasons or None,
        "gen_ai.usage.input_tokens": usage.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        **({} if generation.inputs else _sampling_attributes(generation)),
        **_latencies(received_s, dispatched_s, usage.first_output_s, end_s, len(generation.prompts)),
    }
    if context.server is not None:
        attributes["server.address"], attributes["server.port"] = context.server
    num_choices = len(generation.prompts) * generation.params.n
    return GenerationSpan(
        name=f"{generation.operation} {model}",
        start_s=received_s,
        end_s=end_s,
        attributes={name: value for name, value in attributes.items() if value is not None},
        error_type=_error_type(error, reasons, is_complete=len(reasons) == num_choices),
        headers=context.headers,
    )


def _sampling_attributes(generation: "PreparedGeneration") -> dict[str, Attribute | None]:
    params = generation.params
    has_seed = params.seed is not None and params.seed <= _MAX_INT64
    return {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": float(params.temperature),
        "gen_ai.request.top_p": float(params.top_p),
        "gen_ai.request.top_k": float(params.top_k) if params.top_k > 0 else None,
        "gen_ai.request.seed": params.seed if has_seed else None,
        "gen_ai.request.choice.count": params.n,
    }


def _latencies(
    received_s: float, dispatched_s: float | None, first_output_s: float | None, end_s: float, num_prompts: int
) -> dict[str, Attribute | None]:
    """Return vLLM's latencies, as far as they are known; several prompts have no common prefill and decode."""
    engine_s, token_s = (dispatched_s, first_output_s) if num_prompts == 1 else (None, None)
    return {
        "gen_ai.latency.time_in_queue": _seconds(received_s, dispatched_s),
        "gen_ai.latency.time_to_first_token": _seconds(received_s, first_output_s),
        "gen_ai.latency.time_in_model_prefill": _seconds(engine_s, token_s),
        "gen_ai.latency.time_in_model_decode": _seconds(token_s, end_s),
        "gen_ai.latency.e2e": _seconds(received_s, end_s),
    }


def _seconds(since_s: float | None, until_s: float | None) -> float | None:
    return None if since_s is None or until_s is None else max(0.0, until_s - since_s)


def _error_type(error: BaseException | None, reasons: list[str], *, is_complete: bool) -> str | None:
    if error is not None and not isinstance(error, GeneratorExit | asyncio.CancelledError):
        return refusal_reason(error)
    # A choice that ended badly has its response closed by whoever reads it.
    if bad_end := next((_BAD_ENDS[reason] for reason in reasons if reason in _BAD_ENDS), None):
        return bad_end
    return None if error is None or is_complete else CANCELLED
