"""Which of several engines takes the next request."""

from collections.abc import Sequence
from dataclasses import dataclass

from rayinfer.protocols import GenerationRequest

EXPECTED_OUTPUT_TOKENS = 256  # what a request without max_tokens is taken to generate


@dataclass(kw_only=True, slots=True)
class EngineLoad:
    """What this router has in flight at one engine."""

    name: str
    num_requests: int = 0
    num_tokens: int = 0  # prompts and expected answers of the requests in flight
    last_chosen: int = 0  # ordinal of the latest request that it was given

    def add(self, num_tokens: int) -> None:
        """Count one more request."""
        self.num_requests += 1
        self.num_tokens += num_tokens

    def remove(self, num_tokens: int) -> None:
        """Count a request off again."""
        self.num_requests -= 1
        self.num_tokens -= num_tokens


def least_loaded(loads: Sequence[EngineLoad]) -> EngineLoad:
    """Choose the engine with the fewest tokens in flight, then requests; equals take turns."""
    return min(loads, key=lambda load: (load.num_tokens, load.num_requests, load.last_chosen))


def expected_tokens(request: GenerationRequest) -> int:
    """Estimate the tokens that one choice of this request keeps in an engine's cache at its end."""
    max_tokens = request.sampling_params.max_tokens
    num_output = EXPECTED_OUTPUT_TOKENS if max_tokens is None else min(max_tokens, EXPECTED_OUTPUT_TOKENS)
    return len(request.prompt_token_ids) + num_output
