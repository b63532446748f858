"""Self-check of an engine: a request of its own distinguishes a failing engine from failing requests."""

from collections.abc import Sequence

from rayinfer.engine.loop.stepped_engine import SteppedEngine
from rayinfer.errors import EngineDead
from rayinfer.outputs import TokenDelta
from rayinfer.protocols import GenerationRequest
from rayinfer.sampling_params import SamplingParams

MAX_STEPS = 3  # while others go first; then they have gained tokens, or it is unclear
SELF_CHECK = GenerationRequest(
    request_id="self-check/0",
    prompt_token_ids=[0],
    sampling_params=SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True),
)


def needs_self_check(deltas: Sequence[TokenDelta]) -> bool:
    """Return whether requests have failed in a step, not by themselves, and none has gained a token.

    Predictors check themselves.
    """
    # In this order: in most steps the first delta has a token.
    return not any(delta.token_ids for delta in deltas) and any(
        delta.finish_reason == "error" and delta.prediction is None and delta.error is None for delta in deltas
    )


def run_self_check(engine: SteppedEngine) -> list[TokenDelta]:
    """Compute a prompt of one token beside all running requests; returns the deltas of the others meanwhile.

    Raises EngineDead if that fails, too: then the failed requests may be computed elsewhere.
    """
    engine.add_request(SELF_CHECK)
    others: list[TokenDelta] = []
    for _ in range(MAX_STEPS):
        deltas = engine.step()
        others += [delta for delta in deltas if delta.request_id != SELF_CHECK.request_id]
        ends = [delta.finish_reason for delta in deltas if delta.request_id == SELF_CHECK.request_id]
        if "error" in ends:
            raise EngineDead("its steps fail, whatever they compute")
        if ends or any(delta.token_ids for delta in others):
            break
    engine.abort(SELF_CHECK.request_id)
    return others
