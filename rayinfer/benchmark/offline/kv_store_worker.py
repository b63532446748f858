"""An engine in a process of its own, which runs what it reads: `python -m rayinfer.benchmark.offline.kv_store_worker`.

Its argument has the settings of `LLM`; each line of its input has the arguments of `run_prompts` as JSON.
"""

import json
import sys
import threading
import time
from typing import Any

from rayinfer.kv_cache.pool_pages import THREAD_NAME
from rayinfer.llm import LLM
from rayinfer.sampling_params import SamplingParams


def main() -> None:
    """Answer each line with its times."""
    with LLM(**json.loads(sys.argv[1])) as llm:
        llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
        _wait_for_pages()
        _say({"kernels": llm.description.kernels})
        for line in sys.stdin:
            _say(run_prompts(llm, **json.loads(line)))


def run_prompts(llm: LLM, prompts: list[list[int]], output_lengths: list[int], *, one_by_one: bool) -> dict[str, Any]:
    """Run prompts one by one or at once; returns their times."""
    run = _one_by_one if one_by_one else _at_once
    return run(llm, prompts, output_lengths)


def _one_by_one(llm: LLM, prompts: list[list[int]], output_lengths: list[int]) -> dict[str, Any]:
    seconds, cached, load_ms = [], [], []
    for prompt, length in zip(prompts, output_lengths, strict=True):
        params = SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True)
        begun = time.perf_counter()
        (output,) = llm.generate([prompt], params, trace=True, use_tqdm=False)
        seconds.append(time.perf_counter() - begun)
        cached.append(output.num_cached_tokens)
        load_ms += [event.details["duration_ms"] for event in output.trace or () if event.name == "loaded"]
    return {"seconds": seconds, "cached": cached, "load_ms": load_ms}


def _at_once(llm: LLM, prompts: list[list[int]], output_lengths: list[int]) -> dict[str, Any]:
    params = [SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True) for length in output_lengths]
    begun = time.perf_counter()
    llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begun
    store = llm.stats.kv_store
    return {"seconds": seconds, "dropped": 0 if store is None else store.dropped_blocks_total}


def _wait_for_pages() -> None:
    """Wait until the pool has its memory, which a real engine has a few seconds after its start."""
    for thread in threading.enumerate():
        if thread.name == THREAD_NAME:
            thread.join()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
