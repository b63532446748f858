"""Inputs, outputs and progress on S3, served by moto on this machine."""

import json
import uuid

import pytest

from rayinfer.jobs.interfaces import JobRunning, SourceError
from rayinfer.jobs.progress.folder import ProgressFolder
from rayinfer.jobs.progress.lease import acquire_lease
from rayinfer.jobs.sources.formats import open_source
from rayinfer.jobs.storage.disk import Disk
from rayinfer.jobs.verify import verify_job
from support.jobs.copy_job import copy_job

pytestmark = pytest.mark.jobs


@pytest.fixture(scope="module")
def bucket():
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(port=0)
    server.start()
    host, port = server.get_host_and_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
        for name, value in (("ACCESS_KEY_ID", "test"), ("SECRET_ACCESS_KEY", "test"), ("DEFAULT_REGION", "us-east-1")):
            patch.setenv(f"AWS_{name}", value)
        import s3fs

        name = f"jobs-{uuid.uuid4().hex}"
        s3fs.S3FileSystem(skip_instance_cache=True).mkdir(name)
        yield f"s3://{name}"
    server.stop()


@pytest.fixture
def folder(bucket):
    import fsspec

    folder = f"{bucket}/{uuid.uuid4().hex}"
    with fsspec.open(f"{folder}/in.jsonl", "wb") as file:
        for number in range(11):
            file.write(json.dumps({"id": f"r{number}", "prompt": "x" * number}).encode() + b"\n")
    return folder


def objects(folder, prefix=""):
    import fsspec

    filesystem, path = fsspec.core.url_to_fs(f"{folder}/{prefix}")
    filesystem.invalidate_cache()
    return {name.removeprefix(path): filesystem.cat_file(name) for name in filesystem.find(path)}


@pytest.mark.parametrize("output", ["out.jsonl", "out.jsonl.gz", "out.parquet"])
def test_a_job_that_stops_after_any_row_goes_on_with_the_same_objects(output, folder):
    class Stopped(Exception):
        pass

    def stop_at(number):
        def hook(index):
            if index == number:
                raise Stopped

        return hook

    copy_job(f"{folder}/in.jsonl", f"{folder}/undisturbed", output, Disk())
    root = f"{folder}/stopped"
    for number in (0, 2, 5, 6, 10):
        with pytest.raises(Stopped):
            copy_job(f"{folder}/in.jsonl", root, output, Disk(), after_row=stop_at(number))
        assert "_manifest.json" not in objects(root, output)
    copy_job(f"{folder}/in.jsonl", root, output, Disk())
    assert objects(root, f"{output}/") == objects(f"{folder}/undisturbed", f"{output}/")
    verified = verify_job(open_source(f"{folder}/in.jsonl"), f"{root}/{output}", ProgressFolder(f"{root}/progress"))
    assert verified.is_right, verified.problems


def test_reading_goes_on_after_any_row(folder):
    source = open_source(f"{folder}/in.jsonl")
    rows = list(source.rows())
    assert len(rows) == source.num_rows == 11
    for row in rows:
        assert list(source.rows(row.end)) == rows[row.index + 1 :]


def test_an_object_that_is_written_again_is_another_input(folder):
    import fsspec

    before = open_source(f"{folder}/in.jsonl").digest
    assert open_source(f"{folder}/in.jsonl").digest == before
    with fsspec.open(f"{folder}/in.jsonl", "wb") as file:
        file.write(b'{"id":"other"}\n')
    assert open_source(f"{folder}/in.jsonl").digest != before


def test_two_copies_refuse_each_other(folder):
    progress = ProgressFolder(f"{folder}/progress")
    with acquire_lease(progress, "first"), pytest.raises(JobRunning, match="as first"):
        acquire_lease(progress, "second")
    assert progress.store.create("taken", b"1")
    assert not progress.store.create("taken", b"2")
    assert progress.read("taken") == b"1"


def test_missing_objects_and_buckets_are_refused(folder):
    for location in (f"{folder}/nothing.jsonl", "s3://no-such-bucket-anywhere/in.jsonl"):
        with pytest.raises(SourceError):
            open_source(location)
