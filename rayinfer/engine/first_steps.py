"""What a GPU computes before the first request, so that no kernel is compiled while somebody waits for it."""

from collections.abc import Iterator

import numpy as np

from rayinfer.engine.graph_lines import Padding
from rayinfer.engine.step_plan import EnteredRow, StepPlan
from rayinfer.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)
_DRAWN = SamplingParams(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01)
_FEW, _FACTOR = 4, 4  # kernels look at the size of a step only coarsely, unless it is small


def first_steps(longest: int, block_size: int, padding: Padding) -> Iterator[StepPlan]:
    """Prompts of nobody's, from one token to `longest`; their keys and values go where `padding` says.

    The best token follows the first of them, one that is drawn the others. They take row 0 of the batch, and who enters
    it afterwards finds nothing of them.
    """
    num_tokens = 1
    yield _prompt(num_tokens, _GREEDY, block_size, padding)
    yield _prompt(num_tokens, _DRAWN, block_size, padding)
    while num_tokens < longest:
        num_tokens = min((2 if num_tokens < _FEW else _FACTOR) * num_tokens, longest)
        yield _prompt(num_tokens, _DRAWN, block_size, padding)


def _prompt(num_tokens: int, params: SamplingParams, block_size: int, padding: Padding) -> StepPlan:
    nobody = EnteredRow(
        row=0,
        params=params,
        seed=0,
        choice=0,
        prompt_token_ids=np.zeros(num_tokens, np.int32),
        output_token_ids=np.zeros(0, np.int32),
        end_token_ids=(),
    )
    return StepPlan(
        step=0,
        rows=np.zeros(1, np.int64),
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.arange(num_tokens),
        slots=np.full(num_tokens, padding.slot, np.int64),
        query_starts=np.array([0, num_tokens], np.int32),
        context_lengths=np.array([num_tokens], np.int32),
        block_tables=np.full((1, -(-num_tokens // block_size)), padding.block, np.int32),
        samples=np.ones(1, np.bool_),
        entered=(nobody,),
    )
