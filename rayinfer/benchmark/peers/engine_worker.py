"""Process of one engine under test: reads workloads as lines of JSON, writes seconds.

`engine_worker.py ENGINE SETTINGS` runs under the engine's own interpreter, where rayinfer may be missing: outside of
the functions that open engines it imports the standard library alone.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

Generate = Callable[..., list[int]]  # prompts, output lengths, perhaps adapters' folders -> output lengths found
OPENVINO_CACHE_GB = 2


def open_rayinfer(settings: dict[str, Any]) -> Generate:
    """Open our own engine, as users start it; `engine` holds EngineConfig's fields."""
    from rayinfer.llm import LLM
    from rayinfer.sampling_params import SamplingParams

    llm = LLM(settings["model"], enable_prefix_caching=False, **settings["engine"])

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[int]:
        params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
        return [len(output.outputs[0].token_ids) for output in llm.generate(prompts, params, use_tqdm=False)]

    return generate


def open_vllm(settings: dict[str, Any]) -> Generate:
    """Open vLLM's offline class, with room for the whole workload and without prefix caching."""
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    engine = {"max_model_len": 1024, "max_num_seqs": 64, **settings.get("engine", {})}
    llm = LLM(settings["model"], dtype=settings["dtype"], enable_prefix_caching=False, **engine)
    numbers: dict[str, int] = {}  # of adapters, by folder

    def adapter(folder: str | None) -> Any:
        return folder and LoRARequest(folder, numbers.setdefault(folder, len(numbers) + 1), folder)

    def generate(prompts: list[list[int]], lengths: list[int], adapters: list[str | None] | None = None) -> list[int]:
        params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in lengths]
        inputs = [{"prompt_token_ids": prompt} for prompt in prompts]
        options = {} if adapters is None else {"lora_request": [adapter(folder) for folder in adapters]}
        outputs = llm.generate(inputs, params, use_tqdm=False, **options)
        return [len(output.outputs[0].token_ids) for output in outputs]

    return generate


def open_openvino(settings: dict[str, Any]) -> Generate:
    """Open OpenVINO's pipeline with continuous batching, with room for the whole workload."""
    import numpy as np
    import openvino
    import openvino_genai

    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = OPENVINO_CACHE_GB
    scheduler.max_num_seqs = 64
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = False
    properties = {"INFERENCE_PRECISION_HINT": settings["precision"], "INFERENCE_NUM_THREADS": settings["num_threads"]}
    if not settings["has_dynamic_quantization"]:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    pipeline = openvino_genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)

    def generate(prompts: list[list[int]], lengths: list[int]) -> list[int]:
        configs = [
            openvino_genai.GenerationConfig(max_new_tokens=length, ignore_eos=True, do_sample=False)
            for length in lengths
        ]
        tensors = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        return [len(result.m_generation_ids[0]) for result in pipeline.generate(tensors, configs)]

    return generate


def openvino_instructions(settings: dict[str, Any]) -> str:
    """Return the kernels of OpenVINO's matrix products, which name their instructions, from a profile of one prompt."""
    import numpy as np
    import openvino

    properties = {"INFERENCE_PRECISION_HINT": settings["precision"], "PERF_COUNT": True}
    if not settings["has_dynamic_quantization"]:
        properties["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
    compiled = openvino.Core().compile_model(f"{settings['model']}/openvino_model.xml", "CPU", properties)
    tokens = np.ones((1, 16), np.int64)
    inputs = {"input_ids": tokens, "attention_mask": tokens, "position_ids": tokens.cumsum(1) - 1}
    request = compiled.create_infer_request()
    request.infer({**inputs, "beam_idx": np.zeros(1, np.int32)})
    profile = request.get_profiling_info()
    return " ".join(sorted({node.exec_type for node in profile if node.node_type.startswith("FullyConnected")}))


INSTRUCTIONS = {"openvino": openvino_instructions}
ENGINES = {"rayinfer": open_rayinfer, "vllm": open_vllm, "openvino": open_openvino}


def serve(
    open_engine: Callable[[dict[str, Any]], Generate],
    settings: dict[str, Any],
    find_instructions: Callable[[dict[str, Any]], str] = lambda settings: "",
) -> None:
    """Open the engine, report it with its instructions, and run workloads until the input ends."""
    # Engines and the processes that they start may print: all of that goes to standard error.
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        instructions = find_instructions(settings)
        generate = open_engine(settings)
    except Exception as error:
        _send(replies, error=_one_line(error))
        raise
    _send(replies, ready=True, instructions=instructions)
    for line in sys.stdin:
        workload = json.loads(line)
        try:
            started = time.perf_counter()
            lengths = generate(**workload)
            _send(replies, seconds=time.perf_counter() - started, lengths=lengths)
        except Exception as error:
            _send(replies, error=_one_line(error))


def _send(replies: TextIO, **message: Any) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:500]


if __name__ == "__main__":  # an engine may start processes that import this file again
    serve(ENGINES[sys.argv[1]], json.loads(sys.argv[2]), *filter(None, [INSTRUCTIONS.get(sys.argv[1])]))
