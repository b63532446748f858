from rayinfer.benchmark.offline.job_costs import measure_job_costs
from support.tiny_models.tiny_checkpoints import make_tiny_llama


def test_all_costs_of_a_job_are_measured(tmp_path):
    model = str(make_tiny_llama(tmp_path / "model"))
    lines: list[str] = []
    report = measure_job_costs(300, 1500, model, num_prompts=3, num_rounds=2, command="bench jobs", log=lines.append)
    assert (report.loop.num_rows, report.resumption.num_finished >= 1500) == (300, True)
    assert report.resumption.seconds > 0
    assert len(report.generation.job) == len(report.generation.generate) == 2
    assert [table.title for table in report.tables()][:2] == ["job loop", "resumption, without a model"]
    assert lines[-1] == "round 2 of 2: job"
