"""Ranks that are processes and meet over gloo, in a stage and in two, beside the whole model: every architecture."""

from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from support.services.gloo_ranks import run_processes
from support.services.shared_runs import answer_of, answers_of_rank
from support.tiny_models.tiny_architectures import DECODERS, ENCODER_DECODERS

IN_BFLOAT16 = "mistral in bfloat16"
MAKERS = DECODERS | ENCODER_DECODERS | {IN_BFLOAT16: DECODERS["mistral"]}
FOUR_RANKS = ("llama, tied, one head of keys", "qwen3-moe", "t5", "marian")  # two side by side in each of two stages
CLOSE = {"atol": 1e-4, "rtol": 0.0}
BFLOAT16_CLOSE = {"atol": 0.25, "rtol": 0.05}  # sums are rounded once for each rank


def dtype_of(name: str) -> torch.dtype:
    return torch.bfloat16 if name == IN_BFLOAT16 else torch.float32


def with_dtypes(folders: dict[str, Path], names: Iterable[str] = MAKERS) -> dict[str, tuple[Path, torch.dtype]]:
    return {name: (folders[name], dtype_of(name)) for name in names}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {name: make(tmp_path_factory.mktemp("model")) for name, make in MAKERS.items()}


@pytest.fixture(scope="module")
def of_two(folders):
    return run_processes(2, answers_of_rank, with_dtypes(folders), (1, 2))


@pytest.fixture(scope="module")
def of_four(folders):
    return run_processes(4, answers_of_rank, with_dtypes(folders, FOUR_RANKS), (2,))


def check_same(name, num_stages, folder, by_rank):
    dtype = dtype_of(name)
    with torch.inference_mode():
        whole = answer_of(folder, dtype=dtype)
    answers = [answers[name, num_stages] for answers in by_rank]
    is_exact = dtype == torch.float32
    num_compared = len(whole.logits) if is_exact else 45
    for answer in answers:
        close = CLOSE if is_exact else BFLOAT16_CLOSE
        torch.testing.assert_close(answer.logits[:num_compared], whole.logits[:num_compared], **close)
        assert not is_exact or answer.token_ids == whole.token_ids
        assert torch.equal(answer.logits, answers[0].logits)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("num_stages", [1, 2], ids=["side by side", "in stages"])
@pytest.mark.parametrize("name", MAKERS)
def test_two_processes_answer_like_one(name, num_stages, folders, of_two):
    check_same(name, num_stages, folders[name], of_two)


@pytest.mark.models
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("name", FOUR_RANKS)
def test_four_processes_answer_like_one(name, folders, of_four):
    check_same(name, 2, folders[name], of_four)
