"""transformers' continuous batching as a contender: the one place that runs its modelling code, and only to compare."""

from pathlib import Path

import torch
from rich.progress import Progress
from transformers import AutoModelForCausalLM, GenerationConfig

from rayinfer.benchmark.workloads import Workload
from rayinfer.errors import ConfigError, RayinferError

POLL_S = 1.0
ANSWER_TIMEOUT_S = 600.0  # without one finished answer


class TransformersPeer:
    """transformers' model class under its own scheduler, on the very requests our engine gets."""

    name = "transformers"

    def __init__(self, model_folder: Path, dtype: str) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(
            model_folder, dtype="auto" if dtype == "auto" else getattr(torch, dtype), attn_implementation="sdpa"
        ).eval()

    def answer(self, workload: Workload, *, show_progress: bool) -> list[int]:
        """Answer every prompt and say how many tokens each answer has."""
        no_eos = -1
        generation_config = GenerationConfig(
            do_sample=False, eos_token_id=no_eos, pad_token_id=0, max_new_tokens=max(workload.output_lengths)
        )
        batching = self._model.init_continuous_batching(generation_config=generation_config)
        batching.start()
        try:
            for number, (prompt, length) in enumerate(zip(workload.prompts, workload.output_lengths, strict=True)):
                batching.add_request(prompt, request_id=str(number), max_new_tokens=length)
            return self._collect(batching, workload.num_requests, show_progress)
        finally:
            batching.stop(block=True)

    def _collect(self, batching: object, num_requests: int, show_progress: bool) -> list[int]:
        lengths = [0] * num_requests
        with Progress(disable=not show_progress, transient=True) as progress:
            task = progress.add_task("transformers", total=num_requests)
            waited_s = 0.0
            while not progress.finished:
                result = batching.get_result(timeout=POLL_S)  # type: ignore[attr-defined]
                waited_s = waited_s + POLL_S if result is None else 0.0
                if waited_s > ANSWER_TIMEOUT_S:
                    raise RayinferError(f"transformers finished no answer for {ANSWER_TIMEOUT_S:.0f} s")
                if result is not None and result.is_finished():
                    lengths[int(result.request_id)] = len(result.generated_tokens)
                    progress.advance(task)
        return lengths


def check_peer_name(name: str) -> None:
    """Raise ConfigError for a peer that we cannot run."""
    if name != TransformersPeer.name:
        raise ConfigError(f"peer must be {TransformersPeer.name}, got {name!r}")


def load_peer(name: str, model_folder: Path, dtype: str) -> TransformersPeer:
    """Load the peer of that name with a model's weights."""
    check_peer_name(name)
    return TransformersPeer(model_folder, dtype)
