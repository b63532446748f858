import io

import pytest
from rich.console import Console

from rayinfer.benchmark.load.workloads import offline_workload
from rayinfer.benchmark.offline.offline import measure_interleaved, run_offline
from rayinfer.benchmark.offline.transformers_peer import check_peer_name, transformers_peer
from rayinfer.errors import ConfigError, RayinferError
from support.tiny_models.tiny_checkpoints import make_tiny_llama


class FakeSystem:
    """System that finishes at once, `missing` tokens too early, and records its calls."""

    def __init__(self, name, log, missing=0):
        self.name = name
        self._log = log
        self._missing = missing

    def answer(self, workload, *, show_progress):
        self._log.append((self.name, workload.num_requests))
        return [length - self._missing for length in workload.output_lengths]


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=160)


def test_systems_are_warmed_up_and_then_interleaved(console):
    log = []
    workload = offline_workload(3, (2, 4), (2, 4))
    first, second = measure_interleaved([FakeSystem("a", log), FakeSystem("b", log)], workload, 3, console)
    assert log == [("a", 8), ("b", 8), *[("a", 3), ("b", 3)] * 3]
    assert (first.name, len(first.runs), second.name, len(second.runs)) == ("a", 3, "b", 3)
    assert first.secs == sorted(first.runs)[1]


def test_outputs_that_are_too_short_are_no_measurement(console):
    with pytest.raises(RayinferError, match="slacker gave 3 answers of another length than asked for"):
        measure_interleaved([FakeSystem("slacker", [], missing=1)], offline_workload(3, (2, 4), (2, 4)), 1, console)


def test_the_engine_and_transformers_do_the_same_work(tmp_path, console):
    folder = make_tiny_llama(tmp_path / "model")
    workload = offline_workload(3, (4, 8), (4, 8), vocab_size=384)
    settings = {"num_kv_blocks": 32, "dtype": "float32", "num_threads": 1}
    report = run_offline(
        str(folder),
        settings,
        workload,
        repeat=1,
        peer=transformers_peer(folder, "float32", workload),
        console=console,
    )
    assert report.settings == {"enable_prefix_caching": False, **settings}
    assert (report.prompt_tokens, report.out_tokens) == (workload.num_prompt_tokens, workload.num_output_tokens)
    assert report.ratio == pytest.approx(report.peer.secs / report.own.secs, rel=0.01)
    assert report.start_to_first_token_s > 0
    assert report.peak_rss_bytes > 50 * 2**20
    assert ("ratio rayinfer / transformers", report.ratio) in report.tables()[0].rows


def test_an_unknown_peer_is_refused_before_anything_is_loaded():
    with pytest.raises(ConfigError, match="peer must be transformers, got 'vllm'"):
        check_peer_name("vllm")
