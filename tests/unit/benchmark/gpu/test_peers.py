"""Peers of the GPU benchmark in a dry run, and the minimal loop's tokens beside those of transformers."""

import json
import re
import statistics
from dataclasses import replace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from rayinfer.benchmark.gpu.cases import TINY, even_workload, nano_workload
from rayinfer.benchmark.gpu.deadline import Deadline
from rayinfer.benchmark.gpu.model_shapes import tiny_shape, write_shape
from rayinfer.benchmark.gpu.peers.comparison import compare_peers, measure_in_own_process
from rayinfer.benchmark.gpu.peers.nano_engine import NanoEngine
from rayinfer.benchmark.gpu.peers.nano_model import NanoModel, Operations
from rayinfer.benchmark.gpu.peers.peer_report import PeerJob
from rayinfer.benchmark.gpu.peers.transformers_peer import generate_padded, load_model, open_batching, run_workload
from rayinfer.benchmark.gpu.roofline import CardLimits
from rayinfer.benchmark.load.workloads import Workload
from rayinfer.errors import ConfigError

SHAPE = {**tiny_shape("Qwen3-0.6B"), "initializer_range": 0.4}  # far from ties


@pytest.fixture(scope="module")
def shape_folder(tmp_path_factory):
    return write_shape(SHAPE, tmp_path_factory.mktemp("shape"))


@pytest.fixture(scope="module")
def model(shape_folder):
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(shape_folder)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa").eval()


def nano_engine(model, device="cpu"):
    nano = NanoModel(SHAPE, torch.float32, torch.device(device), Operations(), model.state_dict())
    return NanoEngine(nano, 3, 64, "sdpa")


def greedy_tokens(model, prompt, length):
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(length):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_the_minimal_loop_generates_the_greedy_tokens_of_transformers(model, device):
    prompts = [
        [token % SHAPE["vocab_size"] for token in even_workload(1, length, 1, seed=length).prompts[0]]
        for length in (5, 30, 1, 17, 9)
    ]
    lengths = [12, 4, 20, 1, 9]  # more requests than slots, which are moved and reused
    run = nano_engine(model, device).run(prompts, lengths, 0.0, Deadline(60))
    expected = [greedy_tokens(model, prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    assert len(set(expected[2])) > 5
    assert run.outputs == expected
    assert run.num_tokens == sum(lengths)


def test_the_minimal_loop_stops_at_the_deadline(model):
    now = iter(range(100))
    run = nano_engine(model).run([[1, 2], [3]], [50, 50], 0.6, Deadline(10, lambda: next(now)))
    assert [len(answer) for answer in run.outputs] == [9, 9]


def test_stopped_continuous_batching_counts_unfinished_requests(shape_folder):
    model = load_model(shape_folder, torch.float32, torch.device("cpu"))
    with open_batching(model, TINY) as manager:
        num_tokens = run_workload(manager, Workload(prompts=[[1, 2], [3]], output_lengths=[4_000, 2]), Deadline(1.0))
        assert not manager.is_running()
    assert 2 < num_tokens < 4_002


def test_padded_batches_count_only_the_requested_tokens(shape_folder):
    model = load_model(shape_folder, torch.float32, torch.device("cpu"))
    assert generate_padded(model, [(2, [1, 2, 3]), (5, [4])], Deadline(60)) == 7


def test_a_dry_run_counts_the_tokens_of_every_peer(tmp_path):
    report = compare_peers(tmp_path, print, case_names=["B1", "B3"], is_dry_run=True)
    assert [row.error for row in report.rows] == [""] * 7
    offline, stream = nano_workload(TINY.num_requests, TINY.longest).num_output_tokens, TINY.stream_lengths[1]
    counted = [(row.peer, row.workload, row.tokens) for row in report.rows]
    assert counted == [
        ("rayinfer", "B1", offline),
        ("rayinfer", "B3", stream),
        ("nano", "B1", offline),
        ("nano", "B3", stream),
        ("transformers", "B1", offline),
        ("transformers", "B1", offline),
        ("transformers", "B3", stream),
    ]
    assert not any(row.is_partial for row in report.rows)
    for row in report.rows:
        counted_tokens = 1 if row.workload == "B3" else offline
        assert row.tokens_per_s == pytest.approx(counted_tokens / statistics.median(row.seconds))
        assert row.share > 0
    kept = json.loads((tmp_path / "gpu-peers.json").read_text())
    assert len(kept["rows"]) == 7
    table = (tmp_path / "gpu-peers.md").read_text()
    assert "A dry run" in table
    assert len(re.findall(r"\dx +\|", table)) == 5  # ratios


def test_unknown_peers_and_a_missing_gpu_are_named(tmp_path):
    with pytest.raises(ConfigError, match="there is no peer vllm: choose from nano, transformers"):
        compare_peers(tmp_path, print, only=["vllm"], is_dry_run=True)
    with pytest.raises(ConfigError, match="there is no GPU here"):
        compare_peers(tmp_path, print)


def test_rows_of_a_stopped_process_are_kept_and_its_end_is_named():
    limits = CardLimits(copy_bytes_per_s=3e12, matmul_flops_per_s=7e14)
    job = PeerJob(system="nano", case_names=["B1"], limits=limits, limit_s=5.0, is_tiny=True)
    (row,) = measure_in_own_process(job)
    assert row.error == "left out: 5 s were left"
    (row,) = measure_in_own_process(replace(job, limit_s=60.0))
    assert (row.peer, row.workload, row.error) == ("nano", "B1", "")
    (row,) = measure_in_own_process(replace(job, system="unknown", limit_s=60.0))
    assert "KeyError" in row.error
