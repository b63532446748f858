"""Credits of routers: bounds on what each may have in flight at an engine."""

from rayinfer.outputs import Credits
from rayinfer.protocols import ModelDescription

OVERCOMMIT_DIVISOR = 8  # one request beyond the batch for so many in it: a freed row is reused in the next step
STEPS_AHEAD = 2  # of prompts: the running step, and the one after it


def credits_of_each(description: ModelDescription, num_routers: int) -> Credits:
    """Divide an engine's capacity among its routers; each may send at least one request."""
    num_seqs = description.max_num_seqs
    is_predictor = description.predictor is not None  # of which each step ends all its requests
    num_ahead = num_seqs if is_predictor else -(-num_seqs // OVERCOMMIT_DIVISOR)
    return Credits(
        num_requests=_divide(num_seqs + num_ahead, num_routers),
        num_tokens=_divide(description.kv_blocks_total * description.block_size, num_routers),
        num_prefill_tokens=_divide(STEPS_AHEAD * description.max_num_batched_tokens, num_routers),
    )


def _divide(whole: int, num_routers: int) -> int:
    return max(1, whole // num_routers) if whole else 0
