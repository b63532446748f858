"""Our own engine, as its users start it."""

from collections.abc import Callable
from typing import Any

from rayinfer.llm import LLM
from rayinfer.sampling_params import SamplingParams

DISTRIBUTION = "rayinfer"


def open_engine(settings: dict[str, Any]) -> Callable[[list[list[int]], list[int]], list[int]]:
    """Load the model with EngineConfig's fields."""
    llm = LLM(settings["model"], enable_prefix_caching=False, **settings["engine"])

    def answer(prompts: list[list[int]], lengths: list[int]) -> list[int]:
        params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
        outputs = llm.generate(prompts, params, use_tqdm=False)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return answer
