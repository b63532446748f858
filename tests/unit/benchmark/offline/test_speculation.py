import pytest

from rayinfer.benchmark.offline.speculation import run_speculation_benchmark
from rayinfer.benchmark.offline.speculation_tasks import KINDS, tasks
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def test_eight_prompts_of_each_kind_differ():
    for kind in KINDS:
        assert len(set(tasks(kind, 8))) == 8
        assert tasks(kind, 10)[8:] == tasks(kind, 2)


def test_answers_with_and_without_drafts_are_compared(tmp_path):
    report = run_speculation_benchmark(
        str(make_tiny_llama(tmp_path / "model")),
        {"num_kv_blocks": 256, "dtype": "float32", "num_threads": 1},
        [1, 2],
        speculation=4,
        num_tokens=16,
        num_rounds=2,
        temperature=0.0,
        command="command",
        log=lambda text: None,
    )
    assert [(each.kind, each.num_streams) for each in report.results] == [
        (kind, number) for number in (1, 2) for kind in KINDS
    ]
    for result in report.results:
        least, most = result.range
        assert least <= result.gain <= most
        assert 0 <= result.accepted <= 1
        assert result.tokens_a_step >= 1
        assert result.tok_s == pytest.approx(result.gain * result.off_tok_s, rel=most / least)
    assert len(report.tables()[0].rows) == 6
