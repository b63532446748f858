import gc
import threading

import pytest
import torch

from rayinfer.errors import ConfigError
from rayinfer.jobs import events as job_events
from rayinfer.jobs.events import HandlerFailed
from rayinfer.jobs.interfaces import JobChanged
from rayinfer.jobs.loop.error_limit import TooManyErrors
from rayinfer.jobs.loop.step_loop import JobCancelled, JobInterrupted
from rayinfer.jobs.parameters import job_mesh, job_parameters
from rayinfer.jobs.providers import JobContext
from rayinfer.jobs.seeds import row_seed
from support.fakes.fake_job import MemoryJob, NumberedRows, ShufflingTask

ORDER = (
    *(job_events.CONFIGURATION_STARTED, job_events.DATA_OPENED, job_events.MODEL_LOADED, job_events.RESUMED),
    *(job_events.READY, job_events.FINALIZED, job_events.FINISHED, job_events.FAILED),
)


def test_rows_are_written_once_and_in_order_whatever_the_order_of_computation():
    job = MemoryJob(NumberedRows(23))
    result = job.run()
    assert job.indices == list(range(23))
    assert job.tasks[0].submitted != list(range(23))
    assert (result.summary["rows"], result.summary["ok"], result.summary["output_tokens"]) == (23, 23, 46)
    assert [record["text"] for record in job.sink.records] == [f"{row_seed(0, f'row-{n}'):x}" for n in range(23)]


def test_the_parts_of_a_job_come_up_in_one_order():
    seen: list[str] = []
    job = MemoryJob(NumberedRows(3))
    for event in ORDER:
        job.events.subscribe(event, lambda context, name=event.name: seen.append(name))

    class RecordingModel:
        def initialize(self, context: JobContext) -> torch.nn.Module:
            seen.append("model initialized")
            with torch.device("meta"):
                return torch.nn.Dropout(0.5)

        def load(self, model: torch.nn.Module, context: JobContext) -> torch.nn.Module:
            seen.append("model loaded")
            return model

    class RecordingTask(ShufflingTask):
        def __init__(self) -> None:
            super().__init__()
            seen.append(f"task made with seed {torch.initial_seed()}")

        def attach(self, model: torch.nn.Module) -> None:
            assert not model.training
            assert torch.is_inference_mode_enabled()
            seen.append("model attached in inference mode and eval")

        def finalize(self, context) -> None:
            seen.append("task finalized")

    job.model, job.task = RecordingModel(), RecordingTask
    job.parameters = job_parameters(base_seed=17)
    job.run()
    assert seen == [
        *("configuration.started", "task made with seed 17", "configuration.data_opened"),
        *("model initialized", "model loaded", "configuration.model_loaded"),
        *("model attached in inference mode and eval", "resumed", "ready"),
        *("task finalized", "finalized", "finished"),
    ]


@pytest.fixture
def nothing_is_frozen():
    """Give the garbage collector all objects, as in a process of its own."""
    gc.unfreeze()
    yield
    gc.freeze()


def test_an_error_of_the_task_finalizes_it_once_with_the_error_and_releases_everything(nothing_is_frozen):
    settings = {"checkpointing": {"period_rows": 4}, "window": {"orders_rows": False}}
    job = MemoryJob(NumberedRows(30), parameters=job_parameters(**settings))
    failures = []
    job.events.subscribe(job_events.FAILED, lambda failure: failures.append(failure.error))

    def breaking() -> ShufflingTask:
        task = ShufflingTask()
        task.fail_at = 20
        return task

    job.task = breaking
    assert gc.isenabled()
    during = []
    job.events.subscribe(job_events.STEP_FINISHED, lambda step: during.append(gc.isenabled()))
    with pytest.raises(RuntimeError, match="the task broke") as caught:
        job.run()
    assert job.tasks[0].finalized == [caught.value] == failures
    assert job.tasks[0].is_closed
    assert not any(during)
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    assert job.progress.record is None
    assert job.sink.num_finalized == 0
    num_saved = job.progress.saved[-1].rows_finished
    job.task = ShufflingTask
    job.run()
    assert job.indices == list(range(30))
    assert job.tasks[1].submitted
    assert min(job.tasks[1].submitted) == num_saved > 0


def test_what_a_process_had_frozen_before_a_job_stays_frozen():
    gc.freeze()
    job = MemoryJob(NumberedRows(3))
    job.run()
    assert gc.get_freeze_count() > 0


def test_rows_that_ended_before_their_turn_are_not_computed_again():
    # The first row comes last: no row is written before all are computed.
    rows = NumberedRows(40, prompt=lambda index: "x" * (1 + index))
    job, stop = MemoryJob(rows), threading.Event()
    job.events.subscribe(job_events.CHECKPOINTED, lambda progress: stop.set())
    job.parameters = job_parameters(checkpointing={"period_rows": 20})
    with pytest.raises(JobInterrupted, match="stopped after 20 rows"):
        job.run(stop=stop)
    assert (job.progress.saved[-1].rows_finished, job.progress.saved[-1].position) == (0, None)
    num_kept = job.progress.saved[-1].rows_ahead
    assert num_kept == 20
    job.events = job_events.EventBus()
    assert job.run().summary["output_tokens"] == 80
    assert len(job.tasks[1].submitted) == 40 - num_kept
    assert job.indices == list(range(40))
    assert [record["text"] for record in job.sink.records] == [f"{row_seed(0, f'row-{n}'):x}" for n in range(40)]


def test_rows_that_are_computed_together_are_not_kept_one_by_one():
    class BatchedTask(ShufflingTask):
        batch_rows = 4

    job = MemoryJob(NumberedRows(40, prompt=lambda index: "x" * (1 + index)), task=BatchedTask)
    job.run()
    assert {progress.rows_ahead for progress in job.progress.saved} == {0}


def test_an_error_of_the_task_s_own_end_is_not_followed_by_a_second_end():
    class BrokenEnd(ShufflingTask):
        def finalize(self, context) -> None:
            super().finalize(context)
            raise OSError("no room")

    job = MemoryJob(NumberedRows(3), task=BrokenEnd)
    with pytest.raises(OSError, match="no room"):
        job.run()
    assert job.tasks[0].finalized == [None]
    assert job.progress.record is None


def test_a_complete_job_is_not_run_again():
    job = MemoryJob(NumberedRows(5))
    first = job.run()
    second = job.run()
    assert second.was_complete
    assert second.summary == first.summary
    assert job.tasks[1].submitted == []
    assert job.sink.num_finalized == 1


def test_another_configuration_does_not_go_on_from_the_progress():
    job = MemoryJob(NumberedRows(30))
    job.progress.request_cancel()
    with pytest.raises(JobCancelled):
        job.run()
    job.digest = "other"
    job.progress.is_cancelled = False
    with pytest.raises(JobChanged):
        job.run()


def test_a_cancelled_job_goes_on_from_its_checkpoint():
    job = MemoryJob(NumberedRows(40))
    job.progress.request_cancel()
    with pytest.raises(JobCancelled, match=r"after [0-9]+ rows"):
        job.run()
    num_before = len(job.sink.records)
    job.progress.is_cancelled = False
    job.run()
    assert num_before < 40
    assert job.indices == list(range(40))


def test_a_handler_that_raises_ends_the_job_and_is_named():
    job = MemoryJob(NumberedRows(5))

    def broken_handler(step: job_events.StepContext) -> None:
        raise ValueError("of the handler")

    job.events.subscribe(job_events.STEP_FINISHED, broken_handler)
    with pytest.raises(HandlerFailed, match=r"broken_handler of event 'step.finished': ValueError: of the handler"):
        job.run()
    assert len(job.tasks[0].finalized) == 1


def test_a_handler_can_be_taken_back():
    bus = job_events.EventBus()
    seen = []
    end = bus.subscribe(job_events.READY, seen.append)
    bus.trigger(job_events.READY, None)
    end()
    bus.trigger(job_events.READY, None)
    assert seen == [None]


def test_rows_with_errors_are_written_with_them_until_there_are_too_many():
    job = MemoryJob(NumberedRows(20, errors=frozenset({3})))

    def with_bad_rows() -> ShufflingTask:
        task = ShufflingTask()
        task.bad_rows = frozenset({7})
        return task

    job.task = with_bad_rows
    result = job.run()
    errors = {record["n"]: record["error"] for record in job.sink.records if record["error"]}
    assert errors == {3: "not readable", 7: "not computable"}
    assert job.sink.records[3]["text"] is None
    assert list(job.sink.records[3]) == list(job.sink.records[4])
    assert result.summary["errors"] == 2

    limited = MemoryJob(NumberedRows(20), task=with_bad_rows, parameters=job_parameters(max_errors=0))
    with pytest.raises(TooManyErrors, match="row row-7: not computable"):
        limited.run()


def test_a_share_of_errors_is_held_against_all_rows():
    half = frozenset(range(0, 40, 2))
    MemoryJob(NumberedRows(40, errors=half), parameters=job_parameters(max_errors="50%")).run()
    with pytest.raises(TooManyErrors, match="20 of 40 rows"):
        MemoryJob(NumberedRows(40, errors=half), parameters=job_parameters(max_errors="49.9%")).run()
    with pytest.raises(TooManyErrors, match="40 of 40"):  # the default: nothing but errors is a failure
        MemoryJob(NumberedRows(40, errors=frozenset(range(40)))).run()


def test_columns_of_the_input_that_an_output_has_too_are_kept_under_another_name():
    source = NumberedRows(1)
    job = MemoryJob(source)

    class TextTask(ShufflingTask):
        output_columns = ("prompt",)

    job.task = TextTask
    job.run()
    assert list(job.sink.records[0]) == ["input_prompt", "n", "id", "prompt", "text", "error"]


INVALID = {
    "Input should be less than 9223372036854775808": {"base_seed": 2**63},
    "max_errors: must be a number of rows": {"max_errors": "many"},
    "max_errors: must not be negative": {"max_errors": -1},
    "max_errors: must be a number of rows or a share from 0% to 100%": {"max_errors": "101%"},
    "batching.microbatch_size: Input should be greater than or equal to 1": {"batching": {"microbatch_size": 0}},
    "window.rows: Input should be greater": {"window": {"rows": 0}},
    "checkpointing.period_rows: Input should be greater": {"checkpointing": {"period_rows": 0}},
    "must not both be null": {"checkpointing": {"period_rows": None, "period_s": None}},
    "timeouts.step_s: Input should be greater than 0": {"timeouts": {"step_s": 0}},
    "garbage_collection.period_s": {"garbage_collection": {"period_s": float("inf")}},
    "period_steps must be at least warmup_steps": {
        "profiling": {"traces_dir": "t", "period_steps": 2, "warmup_steps": 1, "active_steps": 2}
    },
    "colour: there is no such setting, got 'red'": {"colour": "red"},
}


@pytest.mark.parametrize("message", INVALID)
def test_parameters_that_cannot_work_are_refused_before_anything_is_made(message):
    with pytest.raises(ConfigError) as caught:
        job_parameters(**INVALID[message])
    assert message in str(caught.value)


def test_batches_that_workers_cannot_share_out_are_refused_before_the_model():
    job = MemoryJob(NumberedRows(1), mesh=job_mesh(data_parallel=3))
    job.parameters = job_parameters(batching={"global_batch_size": 32, "microbatch_size": 8})
    with pytest.raises(ConfigError, match=r"multiple of data_parallel \* microbatch_size \(3 \* 8 = 24\), got 32"):
        job.configurator().configure()
    assert job.tasks == []


def test_a_trace_of_the_steps_is_written(tmp_path):
    settings = {"traces_dir": tmp_path / "traces", "period_steps": 4, "warmup_steps": 1, "active_steps": 2}
    job = MemoryJob(NumberedRows(40), parameters=job_parameters(profiling=settings))
    job.run()
    traces = sorted((tmp_path / "traces").glob("step-*.json.gz"))
    assert traces
    assert traces[0].stat().st_size > 100
