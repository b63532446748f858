import pickle
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from typing import Any

import pytest
import safetensors.torch
import torch

from rayinfer.errors import ConfigError, InvalidParameter, ModelLoadError
from rayinfer.jobs.events import FORWARD_FINISHED, FORWARD_STARTED
from rayinfer.jobs.parameters import job_mesh, job_parameters
from rayinfer.jobs.providers import JobContext, SeededRow
from rayinfer.jobs.tasks.forward_task import ForwardInputs, ForwardTask, ForwardTaskProvider
from rayinfer.jobs.tasks.torch_model import TorchModelProvider
from rayinfer.jobs.workers.stage_processes import StageFailed, run_stage
from support.fakes.fake_job import MemoryJob, NumberedRows
from support.fakes.staged_classifier import SIZE, failing_stage, make_stage

NUM_ROWS = 13


class ClassifierTask(ForwardTask):
    """Task over the staged classifier: one vector of numbers to scores."""

    output_columns = ("scores",)

    def __init__(self, bad_row: int | None = None) -> None:
        self.bad_row = bad_row
        self.microbatches: list[int] = []

    def build_forward_inputs(self, rows: Sequence[SeededRow]) -> ForwardInputs:
        numbers = [each.row.data["n"] for each in rows]
        if self.bad_row in numbers:
            raise InvalidParameter(f"row {self.bad_row} has no numbers")
        values = torch.tensor([[number + place / 8 for place in range(SIZE)] for number in numbers])
        return ForwardInputs({"values": values}, {"numbers": numbers, "scale": 2.0})

    def process_outputs(
        self, rows: Sequence[SeededRow], results: Any, state: Mapping[str, Any]
    ) -> Sequence[Mapping[str, Any]]:
        assert results.is_inference()
        assert results.shape[0] == len(rows)
        assert [each.row.data["n"] for each in rows] == state["numbers"]
        assert state["scale"] == 2.0
        self.microbatches.append(len(rows))
        return [{"scores": [round(float(number), 4) for number in row]} for row in results]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("checkpoint") / "model.safetensors"
    safetensors.torch.save_file(dict(make_stage(0, 1).state_dict()), path)
    return path


def classify(checkpoint, stages=1, *, task=None, batch=8, **settings) -> MemoryJob:
    sizes = {"global_batch_size": batch, "microbatch_size": 4}
    parameters = job_parameters(batching=sizes, timeouts={"step_s": 10}, **settings)
    job = MemoryJob(NumberedRows(NUM_ROWS), mesh=job_mesh(pipeline_parallel=stages), parameters=parameters)
    job.model = TorchModelProvider(make_stage=make_stage, checkpoint=checkpoint)
    made = task or ClassifierTask()
    job.task = lambda: ForwardTaskProvider(lambda: made)(JobContext(mesh=job.mesh, parameters=parameters))
    return job


def test_a_pipeline_of_two_stages_equals_one_process_with_a_ragged_last_microbatch(checkpoint):
    task = ClassifierTask()
    one = classify(checkpoint, task=task)
    seen = []
    one.events.subscribe(FORWARD_STARTED, lambda forward: seen.append(("started", forward.rows)))
    one.events.subscribe(FORWARD_FINISHED, lambda forward: seen.append(("finished", forward.rows)))
    one.run()
    assert task.microbatches == [4, 4, 4, 1]
    assert one.indices == list(range(NUM_ROWS))
    assert seen == [("started", 8), ("finished", 8), ("started", 5), ("finished", 5)]
    two = classify(checkpoint, 2)
    two.run()
    assert two.sink.records == one.sink.records
    assert one.sink.records[3]["scores"] != one.sink.records[4]["scores"]  # dropout is off, inputs matter
    again = classify(checkpoint)
    again.run()
    assert again.sink.records == one.sink.records


def test_a_stage_that_fails_is_named_in_the_place_of_its_result():
    incoming, inputs = Pipe(duplex=False)
    results, outgoing = Pipe(duplex=False)
    for each in (torch.zeros(1, 16), torch.zeros(1, 16)):
        inputs.send_bytes(pickle.dumps(each))
    inputs.close()
    run_stage(1, lambda: failing_stage(1, 2), incoming, outgoing)
    for _ in range(2):
        failure = pickle.loads(results.recv_bytes())
        assert isinstance(failure, StageFailed)
        assert str(failure) == "pipeline stage 1: ArithmeticError: of the stage"


def test_a_bad_row_becomes_an_error_and_its_batch_is_computed_without_it(checkpoint):
    good = classify(checkpoint)
    good.run()
    bad = classify(checkpoint, task=ClassifierTask(bad_row=2))
    bad.run()
    errors = [record["n"] for record in bad.sink.records if record["error"]]
    assert errors == [2]
    assert bad.sink.records[2]["scores"] is None
    assert [record["scores"] for record in bad.sink.records if record["n"] != 2] == [
        record["scores"] for record in good.sink.records if record["n"] != 2
    ]


def test_a_model_is_refused_before_its_weights_are_read(checkpoint, tmp_path):
    with pytest.raises(ModelLoadError, match="no such file"):
        classify(tmp_path / "absent.safetensors").run()
    other = tmp_path / "other.safetensors"
    safetensors.torch.save_file({"weight": torch.zeros(1)}, other)
    with pytest.raises(ModelLoadError, match="lacks"):
        classify(other).run()
    job = classify(checkpoint)
    job.mesh = job_mesh(tensor_parallel=2)
    with pytest.raises(ConfigError, match="tensor_parallel must be 1"):
        job.run()
