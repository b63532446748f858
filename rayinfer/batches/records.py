"""Records of files and batches, and the messages between routers and the owner of both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

BATCH_ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/score",
    "/v1/rerank",
    "/v1/classify",
)


class BatchStatus(StrEnum):
    """State of a batch, with OpenAI's names."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"


OPEN_STATUSES = (BatchStatus.VALIDATING, BatchStatus.IN_PROGRESS, BatchStatus.FINALIZING, BatchStatus.CANCELLING)


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchLimits:
    """Limits of files and batches; those of an owner apply to each key's tenant, or to all callers without keys."""

    max_file_bytes: int = 200 * 2**20
    max_requests: int = 50_000  # of one batch
    max_open_requests: int = 200_000  # of an owner's open batches together
    max_stored_bytes: int = 10 * 2**30  # of an owner's files together


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredFile:
    """A file as clients see it."""

    id: str
    filename: str
    purpose: str
    num_bytes: int
    created_s: float  # since 1970, as all times here
    expires_s: float | None = None

    def as_json(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        return {
            "id": self.id,
            "object": "file",
            "bytes": self.num_bytes,
            "created_at": int(self.created_s),
            "expires_at": None if self.expires_s is None else int(self.expires_s),
            "filename": self.filename,
            "purpose": self.purpose,
            "status": "processed",
            "status_details": None,
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class NewBatch:
    """A batch as a client asks for it."""

    owner: str
    key_id: str
    tenant: str
    endpoint: str
    input_file_id: str
    completion_window: str
    window_s: float
    metadata: Mapping[str, str] | None = None
    output_expires_after_s: float | None = None


class RowUsage(NamedTuple):
    """Tokens of a row, or of several together."""

    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the prompt
    reasoning_tokens: int = 0  # of the output


NO_USAGE = RowUsage()


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """A batch as clients see it."""

    id: str
    status: BatchStatus
    endpoint: str
    input_file_id: str
    completion_window: str
    times_s: Mapping[str, float]  # by status, and `created` and `expires`
    metadata: Mapping[str, str] | None
    errors: Sequence[Mapping[str, Any]]
    output_file_id: str | None
    error_file_id: str | None
    model: str | None
    num_requests: int
    num_completed: int
    num_failed: int
    usage: RowUsage

    def as_json(self) -> dict[str, Any]:
        """Return OpenAI's object."""
        times = {f"{name}_at": int(self.times_s[name]) if name in self.times_s else None for name in _TIMES}
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": list(self.errors)} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": self.completion_window,
            "status": self.status.value,
            "output_file_id": self.output_file_id,
            "error_file_id": self.error_file_id,
            **times,
            "request_counts": {
                "total": self.num_requests,
                "completed": self.num_completed,
                "failed": self.num_failed,
            },
            "usage": {
                "input_tokens": self.usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": self.usage.cached_tokens},
                "output_tokens": self.usage.output_tokens,
                "output_tokens_details": {"reasoning_tokens": self.usage.reasoning_tokens},
                "total_tokens": self.usage.prompt_tokens + self.usage.output_tokens,
            },
            "metadata": None if self.metadata is None else dict(self.metadata),
        }


_TIMES = (
    "created",
    "in_progress",
    "expires",
    "finalizing",
    "completed",
    "failed",
    "expired",
    "cancelling",
    "cancelled",
)


class RowKey(NamedTuple):
    """Name of a row: its batch, and its line in the input file from 0."""

    batch_id: str
    line: int


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchRow:
    """A row that a router is to compute."""

    key: RowKey
    endpoint: str
    body: bytes
    key_id: str
    tenant: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RowResult:
    """A row's response, or the error in its place."""

    key: RowKey
    request_id: str
    status: int
    body: bytes  # JSON in one line
    model: str | None = None
    usage: RowUsage = NO_USAGE


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerReport:
    """Report of a router: its results, the rows that it still computes, and for how many more it has room."""

    router: str
    running: Sequence[RowKey] = ()
    results: Sequence[RowResult] = ()
    num_free: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunnerUpdate:
    """The owner's answer."""

    rows: Sequence[BatchRow] = ()
    stopped: Sequence[str] = field(default_factory=tuple)  # batches of which no row is needed any more
    has_open_batches: bool = False
    num_open_batches: int = 0  # with rows for routers
    num_waiting_rows: int = 0  # of all batches, that no router has


class SharedBatches(Protocol):
    """The owner of files and batches, as a router calls it; all but `sync` raise RequestError or Unavailable."""

    async def begin_file(self, owner: str, filename: str, purpose: str, expires_after_s: float | None) -> str:
        """Begin a file and return its id."""
        ...

    async def append_file(self, file_id: str, offset: int, content: bytes) -> None:
        """Write the next part of a file that was begun."""
        ...

    async def finish_file(self, file_id: str) -> StoredFile:
        """Make a file that was begun durable, and visible."""
        ...

    async def find_file(self, owner: str, file_id: str) -> StoredFile:
        """Return a file's record."""
        ...

    async def list_files(self, owner: str, purpose: str | None) -> list[StoredFile]:
        """Return the records of an owner's files, newest first."""
        ...

    async def read_file(self, owner: str, file_id: str, offset: int, num_bytes: int) -> bytes:
        """Read a part of a file."""
        ...

    async def delete_file(self, owner: str, file_id: str) -> None:
        """Delete a file that no open batch needs."""
        ...

    async def create_batch(self, new: NewBatch) -> Batch:
        """Begin a batch."""
        ...

    async def find_batch(self, owner: str, batch_id: str) -> Batch:
        """Return a batch."""
        ...

    async def list_batches(self, owner: str) -> list[Batch]:
        """Return an owner's batches, newest first."""
        ...

    async def cancel_batch(self, owner: str, batch_id: str) -> Batch:
        """Have a batch end with what is there."""
        ...

    async def sync(self, report: RunnerReport) -> RunnerUpdate:
        """Take a router's report and return rows for it."""
        ...
