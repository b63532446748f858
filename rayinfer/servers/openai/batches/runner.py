"""Runner of batches' rows in a router: each row is a request to the router's own application."""

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp

from rayinfer.access.caller import Caller
from rayinfer.batches.records import BatchRow, RowKey, RowResult, RunnerReport, SharedBatches
from rayinfer.metrics.batch_counts import BatchCounts
from rayinfer.servers.openai.batches.row_request import RowResponse, send_row
from rayinfer.servers.openai.batches.row_usage import row_usage

SYNC_S = 0.25
MIN_GAP_S = 0.02  # between syncs, however fast rows end
IDLE_S = 2.0  # between looks for batches that came through other routers
SYNC_TIMEOUT_S = 30.0
RETRY_S = 1.0
MAX_RETRY_S = 30.0
MAX_FAILURES = 3  # of a row, with 500
MAX_RUNNING = 1024
REFILL_SHARE = 4  # a quarter of the room, once free, is filled at once
CALLER_GONE = RowResponse(
    HTTPStatus.UNAUTHORIZED,
    b'{"error":{"message":"The API key of this batch is not valid any more.","type":'
    b'"invalid_request_error","param":null,"code":"invalid_api_key"}}',
    "",
    None,
)

logger = logging.getLogger(__name__)


class BatchRunner:
    """Takes rows from the owner while there is room, and computes them at the lowest priority.

    `find_caller` returns the caller of a key's id and a tenant's name, None where the key is gone; `num_slots` how many
    rows may run at once.
    """

    def __init__(
        self,
        router: str,
        batches: SharedBatches,
        *,
        find_caller: Callable[[str, str], Caller | None],
        num_slots: Callable[[], int],
        is_used: Callable[[], bool] = lambda: True,
        counts: BatchCounts | None = None,
    ) -> None:
        self._router = router
        self._batches = batches
        self._find_caller = find_caller
        self._num_slots = num_slots
        self._is_used = is_used  # whether there may be batches that this router has not begun
        self._counts = BatchCounts() if counts is None else counts
        self._tasks: dict[RowKey, asyncio.Task[None]] = {}
        self._results: list[RowResult] = []
        self._has_open_batches = False
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Look for rows now."""
        self._has_open_batches = True
        self._wake.set()

    async def run(self, app: ASGIApp) -> None:
        """Compute rows until cancelled."""
        is_away = False
        try:
            while True:
                await self._wait()
                try:
                    await self._sync(app)
                    is_away = False
                except Exception as error:
                    if not is_away:
                        logger.warning("the owner of batches does not answer: %s", error)
                    is_away = True
                    await asyncio.sleep(RETRY_S)
        finally:
            for task in self._tasks.values():
                task.cancel()

    async def _wait(self) -> None:
        """Wait until the owner should be asked again."""
        while True:
            is_busy = bool(self._tasks or self._results or self._has_open_batches)
            await asyncio.sleep(MIN_GAP_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), SYNC_S if is_busy else IDLE_S)
            self._wake.clear()
            if is_busy or self._has_open_batches or self._is_used():
                return

    async def _sync(self, app: ASGIApp) -> None:
        results, running = self._results, list(self._tasks)
        slots = min(MAX_RUNNING, self._num_slots())
        report = RunnerReport(
            router=self._router,
            running=running,
            results=list(results),
            num_free=max(0, slots + slots // 8 - len(running)),
        )
        update = await asyncio.wait_for(self._batches.sync(report), SYNC_TIMEOUT_S)
        del self._results[: len(report.results)]
        self._has_open_batches = update.has_open_batches
        for batch_id in update.stopped:
            for key in [key for key in self._tasks if key.batch_id == batch_id]:
                self._tasks.pop(key).cancel()
        for row in update.rows:
            if row.key not in self._tasks:
                self._tasks[row.key] = asyncio.create_task(self._compute(app, row, slots))
        self._counts.num_open = update.num_open_batches
        self._counts.num_waiting_rows = update.num_waiting_rows
        self._counts.num_running_rows = len(self._tasks)

    async def _compute(self, app: ASGIApp, row: BatchRow, slots: int) -> None:
        response = await self._response(app, row)
        self._results.append(_result(row.key, response))
        self._tasks.pop(row.key, None)
        self._counts.num_running_rows = len(self._tasks)
        if response.status < HTTPStatus.BAD_REQUEST:
            self._counts.num_completed_rows += 1
        else:
            self._counts.num_failed_rows += 1
        if len(self._results) >= max(1, slots // REFILL_SHARE):
            self._wake.set()

    async def _response(self, app: ASGIApp, row: BatchRow) -> RowResponse:
        """Send a row's request until it is answered for good."""
        wait_s, num_failures = RETRY_S, 0
        while True:
            caller = self._find_caller(row.key_id, row.tenant)
            if caller is None:
                return CALLER_GONE
            response = await send_row(app, row, caller)
            if response.status == HTTPStatus.INTERNAL_SERVER_ERROR:
                num_failures += 1
                if num_failures >= MAX_FAILURES:
                    return response
            elif response.status not in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
                return response
            await asyncio.sleep(min(MAX_RETRY_S, max(wait_s, response.retry_after_s or 0.0)))
            wait_s = min(MAX_RETRY_S, 2 * wait_s)


def _result(key: RowKey, response: RowResponse) -> RowResult:
    body: Any = json.loads(response.body or b"null")
    return RowResult(
        key=key,
        request_id=response.request_id,
        status=response.status,
        body=json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass"),
        model=body.get("model") if isinstance(body, dict) else None,
        usage=row_usage(body),
    )
