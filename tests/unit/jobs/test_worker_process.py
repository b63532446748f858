"""Worker of a job, without Ray: traces of its exchanges."""

from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.parameters import Mesh, job_parameters
from rayinfer.jobs.providers import InferenceTask, JobContext, RowOutput, SeededRow
from rayinfer.jobs.workers.worker_process import WorkerProcess


class DoublingTask(InferenceTask):
    """Task that answers at once."""

    capacity, output_columns = 4, ("output",)

    def __init__(self, context):
        self.outputs = []

    def submit(self, rows):
        self.outputs += [RowOutput(index=each.row.index, columns={"output": 2 * each.row.index}) for each in rows]

    def collect(self, timeout_s):
        outputs, self.outputs = self.outputs, []
        return outputs


class NoModel:
    def initialize(self, context):
        return None

    def load(self, model, context):
        return None


def test_a_worker_traces_its_exchanges_in_its_own_folder(tmp_path):
    profiling = {"traces_dir": tmp_path, "period_steps": 3, "warmup_steps": 1, "active_steps": 1}
    context = JobContext(mesh=Mesh(), parameters=job_parameters(profiling=profiling), worker=1)
    worker = WorkerProcess(DoublingTask, NoModel(), context)
    worker.start()
    for index in range(7):
        row = SeededRow(Row(index, str(index), {}, index), 0)
        assert worker.exchange([row]).outputs[0].columns == {"output": 2 * index}
    worker.close()
    assert sorted(path.name for path in (tmp_path / "worker-1").iterdir()) == ["step-3.json.gz", "step-6.json.gz"]
