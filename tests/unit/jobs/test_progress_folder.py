"""Progress of jobs: checkpoints, settings, commit records and status."""

import pytest

from rayinfer.jobs.interfaces import Counts, JobChanged, JobError, Position, Progress
from rayinfer.jobs.progress.folder import ProgressFolder, job_digest
from rayinfer.jobs.progress.status import read_status

PROGRESS = Progress(
    job_digest="d",
    rows_finished=4,
    position=Position(3, 2**50),
    sink_offset={"bytes": 7, "generation": 1},
    seed_scheme="xxh3",
    fencing_token=3,
    counts=Counts(ok=3, errors=1, prompt_tokens=5, output_tokens=6),
)


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    return ProgressFolder(tmp_path / "progress" if request.param == "local" else f"memory:/{tmp_path}/progress")


def test_a_checkpoint_comes_back_as_it_was(folder):
    assert folder.load() is None
    folder.save(PROGRESS)
    assert folder.load() == PROGRESS


def test_a_checkpoint_that_is_too_large_is_refused(folder):
    large = Progress(**{name: getattr(PROGRESS, name) for name in PROGRESS.__slots__} | {"seed_scheme": "x" * 100_000})
    with pytest.raises(JobError, match="more than 100000"):
        folder.save(large)


def test_a_checkpoint_of_another_version_is_refused(folder):
    folder.save(Progress(**{name: getattr(PROGRESS, name) for name in PROGRESS.__slots__} | {"version": 2}))
    with pytest.raises(JobError, match="another version of rayinfer"):
        folder.load()


def test_other_settings_are_refused_by_name_unless_forced(folder):
    folder.check_settings({"model": "other"})
    folder.check_settings({"model": "a", "temperature": 0.8})  # before the first checkpoint
    folder.save(PROGRESS)
    folder.check_settings({"temperature": 0.8, "model": "a"})
    with pytest.raises(JobChanged, match=r'model: "a", now "b"; seed: null, now 1\); .*--force-config'):
        folder.check_settings({"model": "b", "temperature": 0.8, "seed": 1})
    folder.check_settings({"model": "b"}, force=True)
    folder.check_settings({"model": "b"})
    folder.commit({})
    with pytest.raises(JobChanged, match="the job is complete"):
        folder.check_settings({"model": "a"}, force=True)
    folder.check_settings({"model": "b"}, force=True)


def test_the_digest_of_settings_ignores_their_order():
    assert job_digest({"a": 1, "b": {"c": 2, "d": 3}}) == job_digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert job_digest({"a": 1}) != job_digest({"a": 2})


def test_the_status_shows_the_last_checkpoint_and_the_record(folder):
    assert read_status(folder).state == "new"
    folder.save(PROGRESS)
    status = read_status(folder)
    assert (status.state, status.rows_finished, status.counts.errors) == ("stopped", 4, 1)
    folder.commit({"rows": 4})
    assert read_status(folder).state == "complete"
    assert read_status(folder).summary == {"rows": 4}


def test_a_cancellation_waits_until_it_is_cleared(folder):
    assert not folder.cancel_requested()
    folder.request_cancel()
    assert folder.cancel_requested()
    folder.clear_cancel()
    assert not folder.cancel_requested()


def test_rows_ahead_belong_to_the_newest_whole_checkpoint(folder):
    ahead = Progress(**{name: getattr(PROGRESS, name) for name in PROGRESS.__slots__} | {"rows_ahead": 2})
    folder.save(ahead, b"two rows")
    assert folder.load_rows_ahead() == b"two rows"
    assert read_status(folder).rows_finished == 6
    folder.save(ahead, b"others")
    assert folder.load_rows_ahead() == b"others"
    newest = [name for name in folder.store.names() if name.startswith("rows-ahead")][-1]
    folder.store.write(newest, b"torn")
    assert folder.load_rows_ahead() == b""
    folder.save(PROGRESS)
    assert folder.load_rows_ahead() == b""
    folder.commit({})
    assert not any(name.startswith("rows-ahead") for name in folder.store.names())


def test_rows_ahead_of_killed_copies_do_not_stay(folder, monkeypatch):
    ahead = Progress(**{name: getattr(PROGRESS, name) for name in PROGRESS.__slots__} | {"rows_ahead": 2})
    names = lambda: [name for name in folder.store.names() if name.startswith("rows-ahead")]  # noqa: E731
    folder.save(ahead, b"two rows")
    written = names()[0]
    folder.store.write(f"{written[:-1]}2", b"killed before its checkpoint")
    later = Progress(**{name: getattr(ahead, name) for name in ahead.__slots__} | {"fencing_token": 7})
    folder.save(later, b"two rows")
    assert names()[0] == written  # of the checkpoint before, in case the newest is damaged
    folder.save(later, b"others")
    assert len(names()) == 2
    assert folder.load_rows_ahead() == b"others"

    def killed(name, data):
        raise KeyboardInterrupt

    monkeypatch.setattr(folder.store, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        folder.commit({})
    assert names() == []
