"""Credits of routers: bounds on what each may have in flight at an engine."""

from rayinfer.outputs import Credits
from rayinfer.protocols import ModelDescription

SPARE_SHARE = 8  # one request beyond the batch for so many in it: a row that becomes free is taken in the next step
STEPS_AHEAD = 2  # of prompts: the one that is computed, and the one after it


def credits_of_each(description: ModelDescription, num_routers: int) -> Credits:
    """Share what an engine can take among the routers that listen to it; each may send it at least one request."""
    num_seqs = description.max_num_seqs
    return Credits(
        num_requests=_share(num_seqs + -(-num_seqs // SPARE_SHARE), num_routers),
        num_tokens=_share(description.kv_blocks_total * description.block_size, num_routers),
        num_prefill_tokens=_share(STEPS_AHEAD * description.max_num_batched_tokens, num_routers),
    )


def _share(whole: int, num_routers: int) -> int:
    return max(1, whole // num_routers) if whole else 0
