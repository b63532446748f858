"""Ranks that are processes and meet over gloo, beside the whole model: every architecture."""

from pathlib import Path

import pytest
import torch

from gloo_ranks import run_processes
from shared_runs import Answer, answer_of
from tiny_architectures import DECODERS, ENCODER_DECODERS

MAKERS = DECODERS | ENCODER_DECODERS
STAGES = {"llama": 2, "qwen3-moe": 2}
DTYPES = {"mistral": torch.bfloat16}
# Sums are rounded once for each rank in bfloat16; T5's scores are not scaled, so rounding grows.
CLOSE = {"mistral": {"atol": 0.25, "rtol": 0.05}, "t5": {"atol": 5e-4, "rtol": 1e-4}}


def answers_of_rank(group, folders: dict[str, Path]) -> dict[str, Answer]:
    """What one rank computes for every model."""
    return {
        name: answer_of(folder, group, STAGES.get(name, 1), DTYPES.get(name, torch.float32))
        for name, folder in folders.items()
    }


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: make(tmp_path_factory.mktemp("model")) for name, make in MAKERS.items()}


@pytest.fixture(scope="module")
def by_rank(folders):
    return run_processes(2, answers_of_rank, folders)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", MAKERS)
def test_two_processes_answer_like_one(name, folders, by_rank):
    dtype = DTYPES.get(name, torch.float32)
    with torch.inference_mode():
        whole = answer_of(folders[name], dtype=dtype)
    close = CLOSE.get(name.partition(",")[0], {"atol": 1e-4, "rtol": 1e-4})
    num_compared = len(whole.logits) if dtype == torch.float32 else 45
    for answers in by_rank:
        torch.testing.assert_close(answers[name].logits[:num_compared], whole.logits[:num_compared], **close)
        assert dtype != torch.float32 or answers[name].token_ids == whole.token_ids
    assert torch.equal(by_rank[0][name].logits, by_rank[1][name].logits)
