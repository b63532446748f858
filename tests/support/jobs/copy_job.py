"""Job without a model: rows are copied, in the order of operations that a job's loop keeps."""

from collections.abc import Callable
from pathlib import Path

from rayinfer.jobs.interfaces import Progress
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.sinks.formats import open_sink
from rayinfer.jobs.sources.formats import open_source
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.verify import DESCRIPTION


def copy_job(
    input_path: str | Path,
    root: str | Path,
    output: str,
    disk: Disk,
    *,
    after_row: Callable[[int], None] = lambda index: None,
    before_finalize: Callable[[], None] = lambda: None,
) -> None:
    """Copy rows, three to a checkpoint and four to a part, from where the last checkpoint ends."""
    progress = ProgressFolder(f"{root}/progress", disk)
    sink = open_sink(f"{root}/{output}", rows_per_part=4, disk=disk)
    if progress.committed() is not None:
        sink.clean_up()
        return
    source = open_source(input_path, scan_store=progress)
    checkpoint = progress.load()
    sink.open(checkpoint.sink_offset if checkpoint else None)
    try:
        for row in source.rows(checkpoint.position if checkpoint else None):
            sink.write([{**row.data, "id": row.id}])
            after_row(row.index)
            if row.index % 3 == 2 or row.index + 1 == source.num_rows:
                progress.save(
                    Progress(
                        job_digest="digest",
                        rows_finished=row.index + 1,
                        position=row.end,
                        sink_offset=sink.flush(),
                        seed_scheme="scheme",
                        fencing_token=1,
                    )
                )
        before_finalize()
        progress.commit({DESCRIPTION: sink.finalize()})
        sink.clean_up()
    finally:
        sink.close()


def contents(root: Path) -> dict[str, bytes]:
    """Return all of a local output by name, but nothing of its progress."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.name.endswith(".tmp"))
    names = {str(path.relative_to(root)): path for path in found}
    return {name: path.read_bytes() for name, path in names.items() if not name.startswith("progress/")}
