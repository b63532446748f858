"""ray.data: the same text as `LLM.generate`, whatever the batches, and after a lost actor."""

import json
import os
import signal
from dataclasses import replace

import pytest

from rayinfer import LLM
from rayinfer.errors import ConfigError
from rayinfer.jobs.batch_job import batch_job, configure_batch_job
from rayinfer.jobs.data.processor import build_processor, processor_config
from rayinfer.jobs.seeds import row_seed
from rayinfer.jobs.sources.formats import open_source

pytestmark = pytest.mark.jobs

ENGINE = {"num_threads": 1}
SAMPLING = {"max_tokens": 12, "temperature": 0.8}
ROWS = [{"id": f"r{n}", "prompt": f"Number {n} is the number after" * (1 + n % 3)} for n in range(40)]


@pytest.fixture(scope="module", autouse=True)
def ray_data():
    import ray
    import ray.data

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=200 << 20, configure_logging=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield ray.data
    ray.shutdown()


@pytest.fixture(scope="module")
def expected():
    llm = LLM(**ENGINE)
    defaults = llm.get_default_sampling_params()  # the model's own, which apply to jobs, too
    params = [replace(defaults, **SAMPLING, seed=row_seed(0, row["id"])) for row in ROWS]
    outputs = llm.generate([row["prompt"] for row in ROWS], params, use_tqdm=False)
    llm.exit()
    return {row["id"]: output.outputs[0].text for row, output in zip(ROWS, outputs, strict=True)}


def config(**settings):
    return processor_config(**{"engine": ENGINE, "sampling": SAMPLING, "batch_size": 4} | settings)


def texts(rows):
    return {row["id"]: row["text"] for row in rows}


def test_the_text_is_that_of_generate_and_all_columns_stay(ray_data, expected):
    processor = build_processor(
        config(), preprocess=lambda row: row | {"extra": 1}, postprocess=lambda row: row | {"length": len(row["text"])}
    )
    rows = processor(ray_data.from_items(ROWS, override_num_blocks=3)).take_all()
    assert texts(rows) == expected
    assert rows[0].keys() == {"id", "prompt", "extra", "text", "finish_reason", "usage", "error", "length"}
    assert rows[0]["usage"]["completion_tokens"] == 12
    assert {row["error"] for row in rows} == {None}


def test_a_batch_job_writes_the_same_text(expected, tmp_path):
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    job = batch_job(
        input=str(tmp_path / "in.jsonl"), output=str(tmp_path / "out.parquet"), sampling=SAMPLING, engine=ENGINE
    )
    configure_batch_job(job).infer()
    assert texts(row.data for row in open_source(tmp_path / "out.parquet").rows()) == expected


def test_a_row_that_cannot_be_computed_is_an_error_row(ray_data, expected):
    rows = build_processor(config())(
        ray_data.from_items([*ROWS[:3], {"id": "long", "prompt": "x " * 30_000}])
    ).take_all()
    assert texts(rows) == {row["id"]: expected[row["id"]] for row in ROWS[:3]} | {"long": None}
    assert [row["error"] is None for row in rows] == [True, True, True, False]


def test_an_actor_that_is_killed_in_the_middle_changes_nothing(ray_data, expected, tmp_path):
    class KillsItself:
        """Row function whose process kills the actor of the engine once the first rows are there."""

        def __call__(self, row):
            import psutil

            marker = tmp_path / "killed"
            if not marker.exists():
                for process in psutil.process_iter(["cmdline"]):
                    if "MapBatches(EngineUDF)" in " ".join(process.info["cmdline"] or ()):
                        marker.touch()
                        os.kill(process.pid, signal.SIGKILL)
            return row

    processor = build_processor(config(max_concurrent_batches=2), postprocess=KillsItself())
    rows = processor(ray_data.from_items(ROWS, override_num_blocks=10)).take_all()
    assert (tmp_path / "killed").exists()
    assert texts(rows) == expected
    assert len(rows) == len(ROWS)


def test_rows_that_a_checkpoint_of_ray_data_has_are_not_computed_again(ray_data, expected, tmp_path):
    import pyarrow.parquet
    from ray.data.checkpoint import CheckpointConfig

    for name, rows in (("a", ROWS[:24]), ("b", ROWS[24:])):
        (tmp_path / "in" / name).mkdir(parents=True)
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "in" / name / "rows.parquet")
    seen = tmp_path / "seen"
    seen.mkdir()

    def noted(row):
        (seen / row["id"]).touch(exist_ok=False)  # fails the second time
        return row

    context = ray_data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=str(tmp_path / "checkpoint"), delete_checkpoint_on_success=False
    )
    try:
        for location in ("in/a", "in"):
            dataset = ray_data.read_parquet(str(tmp_path / location))
            build_processor(config(), postprocess=noted)(dataset).write_parquet(str(tmp_path / "out"))
    finally:
        context.checkpoint_config = None
    rows = pyarrow.parquet.read_table(tmp_path / "out").to_pylist()
    assert len(rows) == len(ROWS)
    assert texts(rows) == expected


def test_predictors_run_as_well(ray_data):
    processor = build_processor(processor_config(model="all-minilm-l6-v2", engine=ENGINE))
    rows = processor(ray_data.from_items([{"id": n, "text": f"text {n}"} for n in range(9)])).take_all()
    assert [len(row["embedding"]) for row in rows] == [384] * 9


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concurrency": 0}, "concurrency: .*must be at least 1"),
        ({"batchsize": 3}, "batchsize: Extra inputs"),
        ({"batch_size": 0}, "batch_size: "),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, message):
    with pytest.raises(ConfigError, match=message):
        processor_config(**settings)


def test_settings_that_do_not_fit_the_model_are_refused_before_anything_runs():
    with pytest.raises(ConfigError, match="does not generate"):
        build_processor(processor_config(model="all-minilm-l6-v2", sampling={"max_tokens": 3}))
    with pytest.raises(ConfigError, match="exclude each other"):
        build_processor(processor_config(prompt_column="a", prompt_template="{a}"))
