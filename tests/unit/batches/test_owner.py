import json
from pathlib import Path

import pytest

from rayinfer.batches.owner import BatchOwner
from rayinfer.batches.records import Batch, BatchLimits, BatchStatus, NewBatch, RowResult, RunnerReport
from rayinfer.errors import InvalidParameter, QuotaExceeded, ResourceNotFound, Unavailable
from support.services.polling import wait_until

ENDPOINT = "/v1/completions"


def upload(owner: BatchOwner, num_rows: int) -> str:
    rows = (
        {"custom_id": f"row-{index}", "method": "POST", "url": ENDPOINT, "body": {"prompt": "x"}}
        for index in range(num_rows)
    )
    file_id = owner.begin_file("me", "in.jsonl", "batch", None)
    owner.append_file(file_id, 0, b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return owner.finish_file(file_id).id


def begin(owner: BatchOwner, num_rows: int) -> Batch:
    new = NewBatch(
        owner="me",
        key_id="",
        tenant="me",
        endpoint=ENDPOINT,
        input_file_id=upload(owner, num_rows),
        completion_window="24h",
        window_s=86400.0,
    )
    batch = owner.create_batch(new)
    await_status(owner, batch.id, BatchStatus.IN_PROGRESS)
    return batch


def await_status(owner: BatchOwner, batch_id: str, status: BatchStatus) -> Batch:
    wait_until(lambda: owner.find_batch("me", batch_id).status is status)
    return owner.find_batch("me", batch_id)


def compute(owner: BatchOwner, number: int, text: str = "answer") -> None:
    """Have a router take rows and return results."""
    rows = owner.sync(RunnerReport(router="router", num_free=number)).rows
    body = json.dumps({"text": text}).encode()
    results = [RowResult(key=row.key, request_id="id", status=200, body=body) for row in rows]
    owner.sync(RunnerReport(router="router", results=results))


def lines(owner: BatchOwner, file_id: str | None) -> list[dict[str, object]]:
    assert file_id is not None
    return [json.loads(line) for line in owner.read_file("me", file_id, 0, 10**6).splitlines()]


def test_a_cancelled_batch_keeps_what_is_there(owner: BatchOwner):
    batch = begin(owner, 10)
    compute(owner, 4)
    owner.cancel_batch("me", batch.id)
    ended = await_status(owner, batch.id, BatchStatus.CANCELLED)
    assert len(lines(owner, ended.output_file_id)) == 4
    assert len(lines(owner, ended.error_file_id)) == 6
    assert (ended.num_requests, ended.num_completed) == (10, 4)


def test_the_first_result_of_a_row_counts(owner: BatchOwner):
    batch = begin(owner, 1)
    (row,) = owner.sync(RunnerReport(router="slow", num_free=1)).rows
    for text in ("first", "second"):
        result = RowResult(key=row.key, request_id=text, status=200, body=b"{}")
        owner.sync(RunnerReport(router=text, results=[result]))
    owner.sync(RunnerReport(router="slow"))
    ended = await_status(owner, batch.id, BatchStatus.COMPLETED)
    assert [line["response"]["request_id"] for line in lines(owner, ended.output_file_id)] == ["first"]


def test_results_survive_the_owner(folder: Path):
    owner = BatchOwner(folder)
    batch = begin(owner, 10)
    compute(owner, 7)
    owner.close()
    owner = BatchOwner(folder)
    assert owner.find_batch("me", batch.id).num_completed == 7
    rows = owner.sync(RunnerReport(router="other", num_free=10)).rows
    assert [row.key.line for row in rows] == [7, 8, 9]
    owner.close()


def test_another_service_cannot_have_the_folder(owner: BatchOwner, folder: Path):
    with pytest.raises(Unavailable, match="another service"):
        BatchOwner(folder)


def test_files_are_their_owners(owner: BatchOwner):
    file_id = upload(owner, 1)
    with pytest.raises(ResourceNotFound):
        owner.find_file("other", file_id)
    with pytest.raises(ResourceNotFound):
        owner.read_file("other", file_id, 0, 1)
    with pytest.raises(ResourceNotFound):
        owner.find_batch("other", begin(owner, 1).id)


def test_the_input_of_an_open_batch_cannot_be_deleted(owner: BatchOwner):
    batch = begin(owner, 1)
    with pytest.raises(InvalidParameter):
        owner.delete_file("me", batch.input_file_id)
    owner.cancel_batch("me", batch.id)
    await_status(owner, batch.id, BatchStatus.CANCELLED)
    owner.delete_file("me", batch.input_file_id)


def test_an_upload_that_was_interrupted_leaves_nothing(folder: Path):
    owner = BatchOwner(folder)
    file_id = owner.begin_file("me", "in.jsonl", "batch", None)
    owner.append_file(file_id, 0, b"part")
    owner.close()
    owner = BatchOwner(folder)
    with pytest.raises(ResourceNotFound):
        owner.append_file(file_id, 4, b"more")
    assert list((folder / "files").iterdir()) == []
    owner.close()


def test_limits_hold(folder: Path):
    owner = BatchOwner(folder, limits=BatchLimits(max_stored_bytes=1000, max_open_requests=4))
    batch = begin(owner, 3)
    new = upload(owner, 2)
    second = owner.create_batch(
        NewBatch(
            owner="me",
            key_id="",
            tenant="me",
            endpoint=ENDPOINT,
            input_file_id=new,
            completion_window="24h",
            window_s=86400.0,
        )
    )
    failed = await_status(owner, second.id, BatchStatus.FAILED)
    assert failed.errors[0]["code"] == "request_limit_exceeded"
    file_id = owner.begin_file("me", "large", "batch", None)
    with pytest.raises(QuotaExceeded):
        owner.append_file(file_id, 0, b"x" * 1000)
    assert owner.find_batch("me", batch.id).status is BatchStatus.IN_PROGRESS
    owner.close()
