"""Callable class for `ray.data.Dataset.map_batches`: an engine in each actor, whose batch spans those of the data."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

import msgspec
import pyarrow
import xxhash
from ray.util.metrics import Counter, Gauge

from rayinfer.errors import RequestFailed
from rayinfer.jobs.data.row_pump import RowPump
from rayinfer.jobs.interfaces import Row
from rayinfer.jobs.parameters import JobParameters, Mesh
from rayinfer.jobs.providers import JobContext, ModelProvider, RowOutput, SeededRow, TaskProvider
from rayinfer.jobs.seeds import row_seed
from rayinfer.jobs.sources.identified_rows import ID_COLUMNS

ERROR = "error"
_USAGE = pyarrow.struct([(name, pyarrow.int64()) for name in ("prompt_tokens", "completion_tokens", "total_tokens")])
# So that blocks of rows without errors, or of nothing else, have the same columns as others.
_TYPES = {
    "text": pyarrow.string(),
    "finish_reason": pyarrow.string(),
    "usage": _USAGE,
    "embedding": pyarrow.list_(pyarrow.float64()),
    "labels": pyarrow.list_(pyarrow.struct([("label", pyarrow.string()), ("score", pyarrow.float64())])),
    "score": pyarrow.float64(),
    ERROR: pyarrow.string(),
}


class EngineUDF:
    """Engine behind an asynchronous call: Ray Data has several batches in flight, and their rows run together.

    Takes and returns Arrow tables (`batch_format="pyarrow"`), with a row of output for each of input in their order:
    the input's columns, those of the task, and `error`. A row's seed follows from the base seed and its id, so a batch
    that is computed again, after its actor was lost, has the same output.
    """

    def __init__(
        self,
        tasks: TaskProvider,
        models: ModelProvider,
        *,
        num_engines: int = 1,
        id_column: str | None = None,
        base_seed: int = 0,
        continues_on_error: bool = True,
    ) -> None:
        context = JobContext(
            mesh=Mesh(data_parallel=num_engines), parameters=JobParameters(base_seed=base_seed), worker=0
        )
        task, model = tasks(context), models.initialize(context)
        task.attach(models.load(model, context))
        self._columns = task.output_columns
        self._pump = RowPump(task)
        self._id_column = id_column
        self._base_seed = base_seed
        self._continues_on_error = continues_on_error
        self._numbers = itertools.count()
        self._rows = Counter("rayinfer_data_rows_total", "Rows that ended, with output or with an error.", ("result",))
        self._tokens = Counter("rayinfer_data_tokens_total", "Tokens of prompts and of outputs.", ("kind",))
        self._waiting = Gauge("rayinfer_data_rows_in_engine", "Rows in the engine, of all batches.")

    async def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        """Compute a batch while others are computed, too."""
        futures = self._pump.submit([self._seeded(data) for data in batch.to_pylist()])
        self._waiting.set(self._pump.num_waiting)
        outputs = await asyncio.gather(*map(asyncio.wrap_future, futures))
        self._count(outputs)
        for name in self._columns:
            batch = _with_column(batch, name, [output.columns.get(name) for output in outputs])
        return _with_column(batch, ERROR, [output.error for output in outputs])

    def close(self) -> None:
        """Free the engine."""
        self._pump.close()

    def _seeded(self, data: dict[str, Any]) -> SeededRow:
        row = Row(next(self._numbers), self._id_of(data), data, position=0)
        return SeededRow(row, row_seed(self._base_seed, row.id))

    def _id_of(self, data: Mapping[str, Any]) -> str:
        """Return a row's id: that of its column, else the digest of its content, since rows have no numbers here."""
        for name in ID_COLUMNS if self._id_column is None else (self._id_column,):
            if data.get(name) is not None:
                return str(data[name])
        return xxhash.xxh3_128_hexdigest(msgspec.json.encode(data, order="deterministic"))

    def _count(self, outputs: list[RowOutput]) -> None:
        errors = [output.error for output in outputs if output.error is not None]
        self._rows.inc(len(outputs) - len(errors), {"result": "ok"})
        if errors:
            self._rows.inc(len(errors), {"result": "error"})
        for kind in ("prompt", "output"):
            num_tokens = sum(getattr(output, f"{kind}_tokens") for output in outputs)
            if num_tokens:
                self._tokens.inc(num_tokens, {"kind": kind})
        self._waiting.set(self._pump.num_waiting)
        if errors and not self._continues_on_error:
            raise RequestFailed(f"{len(errors)} of {len(outputs)} rows failed, the first one: {errors[0]}")


def _with_column(table: pyarrow.Table, name: str, values: list[Any]) -> pyarrow.Table:
    """Add a column, or put it in the place of one of that name."""
    try:
        column = pyarrow.array(values, _TYPES.get(name))
    except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
        column = pyarrow.array(values)  # such as the texts of several choices
    if name in table.column_names:
        return table.set_column(table.column_names.index(name), name, column)
    return table.append_column(name, column)
