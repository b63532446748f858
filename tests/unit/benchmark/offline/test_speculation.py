import pytest

from rayinfer.benchmark.offline.speculation import run_speculation_benchmark
from rayinfer.benchmark.offline.speculation_tasks import KINDS, tasks
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def test_eight_prompts_of_each_kind_differ():
    for kind in KINDS:
        assert len(set(tasks(kind, 8))) == 8
        assert tasks(kind, 10)[8:] == tasks(kind, 2)


def run(folder, *, streams, num_rounds):
    return run_speculation_benchmark(
        str(folder),
        {"num_kv_blocks": 256, "dtype": "float32", "num_threads": 1},
        streams,
        speculation=4,
        num_tokens=16,
        num_rounds=num_rounds,
        temperature=0.0,
        command="command",
        log=lambda text: None,
    )


def test_rounds_find_no_answers_of_earlier_ones(tmp_path):
    folder = make_tiny_llama(tmp_path / "model")
    one, three = (run(folder, streams=[1], num_rounds=number).results for number in (1, 3))
    assert [each.accepted for each in one] == [each.accepted for each in three]


def test_answers_with_and_without_drafts_are_compared(tmp_path):
    report = run(make_tiny_llama(tmp_path / "model"), streams=[1, 2], num_rounds=2)
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
