"""What a GPU computes before the first request, so that no kernel is compiled while somebody waits for it."""

from collections.abc import Iterator

import numpy as np

from rayinfer.engine.graph_lines import Padding
from rayinfer.engine.step_plan import EnteredRow, StepPlan
from rayinfer.sampling_params import SamplingParams

_GREEDY = SamplingParams(temperature=0.0)
_DRAWN = SamplingParams(temperature=0.8, top_p=0.9, top_k=20, min_p=0.01)
_FEW, _FACTOR = 4, 4  # kernels look at the size of a step only coarsely, unless it is small


def first_steps(most: int, longest: int, block_size: int, padding: Padding) -> Iterator[StepPlan]:
    """Prompts of nobody's, in steps from one token to `most`; their keys and values go where `padding` says.

    No prompt has more than `longest` tokens: larger steps have several. The best token follows the first, one that is
    drawn the others. They take row 0 of the batch, and who enters it afterwards finds nothing of them.
    """
    num_tokens = 1
    yield _prompts(num_tokens, longest, _GREEDY, block_size, padding)
    yield _prompts(num_tokens, longest, _DRAWN, block_size, padding)
    while num_tokens < most:
        num_tokens = min((2 if num_tokens < _FEW else _FACTOR) * num_tokens, most)
        yield _prompts(num_tokens, longest, _DRAWN, block_size, padding)


def _prompts(num_tokens: int, longest: int, params: SamplingParams, block_size: int, padding: Padding) -> StepPlan:
    """As few prompts as hold so many tokens; the last one samples."""
    nobody = EnteredRow(
        row=0,
        params=params,
        seed=0,
        choice=0,
        prompt_token_ids=np.zeros(min(num_tokens, longest), np.int32),
        output_token_ids=np.zeros(0, np.int32),
        end_token_ids=(),
    )
    starts = np.append(np.arange(0, num_tokens, longest), num_tokens)
    lengths = np.diff(starts)
    return StepPlan(
        step=0,
        rows=np.zeros(len(lengths), np.int64),
        token_ids=np.zeros(num_tokens, np.int32),
        positions=np.arange(num_tokens) % longest,
        slots=np.full(num_tokens, padding.slot, np.int64),
        query_starts=starts.astype(np.int32),
        context_lengths=lengths.astype(np.int32),
        block_tables=np.full((len(lengths), -(-min(num_tokens, longest) // block_size)), padding.block, np.int32),
        samples=np.arange(len(lengths)) == len(lengths) - 1,
        entered=(nobody,),
    )
