"""transformers' continuous batching as a peer, for comparison only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import Progress
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig

from rayinfer.benchmark.load.workloads import Workload
from rayinfer.errors import ConfigError, RayinferError

POLL_S = 1.0
RESPONSE_TIMEOUT_S = 600.0  # without one finished answer
PAGE_SIZE = 256  # transformers' own default, in tokens
NO_END_TOKEN = -1


class TransformersPeer:
    """transformers' model under its own scheduler, on the requests of our engine."""

    name = "transformers"

    def __init__(self, batching: Any) -> None:
        self._batching = batching

    def answer(self, workload: Workload, *, show_progress: bool) -> list[int]:
        """Answer every prompt; returns the number of tokens of each answer."""
        numbers = {
            self._batching.add_request(prompt, max_new_tokens=length): number
            for number, (prompt, length) in enumerate(zip(workload.prompts, workload.output_lengths, strict=True))
        }
        lengths = [0] * workload.num_requests
        waited_s = 0.0
        with Progress(disable=not show_progress, transient=True) as progress:
            task = progress.add_task(self.name, total=len(numbers))
            while numbers:
                result = self._batching.get_result(timeout=POLL_S)
                waited_s = waited_s + POLL_S if result is None else 0.0
                if waited_s > RESPONSE_TIMEOUT_S or not self._batching.is_running():
                    raise RayinferError(f"{self.name} finished no answer for {waited_s:.0f} s, or has stopped")
                if result is not None and result.is_finished():
                    lengths[numbers.pop(result.request_id)] = len(result.generated_tokens)
                    progress.advance(task)
        return lengths


def check_peer_name(name: str) -> None:
    """Raise ConfigError for an unknown peer."""
    if name != TransformersPeer.name:
        raise ConfigError(f"peer must be {TransformersPeer.name}, got {name!r}")


@contextmanager
def transformers_peer(model_folder: Path, dtype: str, workload: Workload) -> Iterator[TransformersPeer]:
    """Load a model into transformers and keep its scheduler running, whose cache holds the whole workload.

    Blocks are not shared between prompts, so that a second run has as much to compute as the first.
    """
    torch_dtype = "auto" if dtype == "auto" else getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch_dtype, attn_implementation="sdpa").eval()
    # By default it would take nine tenths of the free memory, which makes nothing faster.
    lengths = zip(map(len, workload.prompts), workload.output_lengths, strict=True)
    num_blocks = sum(-(-(prompt + output) // PAGE_SIZE) for prompt, output in lengths)
    batching = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, eos_token_id=NO_END_TOKEN, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(num_blocks=max(num_blocks, 16), allow_block_sharing=False),
    )
    batching.start()
    try:
        yield TransformersPeer(batching)
    finally:
        batching.stop(block=True)
