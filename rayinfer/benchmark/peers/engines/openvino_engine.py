"""OpenVINO GenAI's pipeline with continuous batching."""

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino
import openvino_genai

DISTRIBUTION = "openvino-genai"
CACHE_GB = 2


def open_engine(settings: dict[str, Any]) -> Callable[[list[list[int]], list[int]], list[int]]:
    """Load an exported model with room for all of the work; blocks are not shared between prompts."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = CACHE_GB
    scheduler.max_num_seqs = 64
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_PRECISION_HINT": settings["precision"], "INFERENCE_NUM_THREADS": settings["num_threads"]}
    pipeline = openvino_genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)

    def answer(prompts: list[list[int]], lengths: list[int]) -> list[int]:
        wishes = [
            openvino_genai.GenerationConfig(max_new_tokens=length, ignore_eos=True, do_sample=False)
            for length in lengths
        ]
        tensors = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        return [len(result.m_generation_ids[0]) for result in pipeline.generate(tensors, wishes)]

    return answer
