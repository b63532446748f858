"""Interface of transfers, in the shape of NIXL's agent: register memory, describe, initialize, post, poll, release.

| here | NIXL 1.x (`nixl_agent`) |
|---|---|
| `register_memory`, `deregister_memory` | the same |
| `PeerAddress`, which travels with a request | `get_agent_metadata`, `add_remote_agent` |
| `LocalDescriptor`, names of blocks | `get_xfer_descs`: local memory, and remote objects by their keys (`OBJ`) |
| `initialize_transfer` | `initialize_xfer("READ", local, remote, agent)` |
| `post`, `poll`, `release` | `transfer`, `check_xfer_state`, `release_xfer_handle` |

Remote blocks are described by their names and not by addresses: a store may evict a block, and what is read must be
verified. An agent over RDMA would resolve names to the peer's registered memory when a transfer is initialized.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from rayinfer.kv_store.store import BlockName


class TransferState(StrEnum):
    """State of a transfer."""

    INITIALIZED = "initialized"
    IN_PROGRESS = "in progress"
    DONE = "done"  # all that the peer has: it may be fewer blocks than were asked for
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class PeerAddress:
    """Address of a block server, with what a peer needs to be served."""

    host: str
    port: int
    key: bytes = field(repr=False)
    certificate: str = field(default="", repr=False)  # PEM of the server's own, where it has one: it speaks TLS then


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRegion:
    """Memory that transfers may write to, from its registration on."""

    memory: memoryview


@dataclass(frozen=True, slots=True)
class LocalDescriptor:
    """Place of one block in a registered region."""

    region: MemoryRegion
    offset: int


@dataclass(kw_only=True, slots=True, eq=False)
class TransferRequest:
    """A transfer of blocks in their order, each verified before it counts.

    The memory of blocks up to `num_blocks` is the caller's again; that of the others is once the transfer has ended.
    """

    peer: PeerAddress
    names: Sequence[BlockName]
    local: Sequence[LocalDescriptor]
    wait_s: float  # for blocks that the peer does not have yet
    timeout_s: float  # of the whole, from `post` on
    state: TransferState = TransferState.INITIALIZED
    num_blocks: int = 0  # that have arrived
    failure: str = ""
    num_damaged: int = 0  # blocks that arrived with other bytes than were sent

    @property
    def has_ended(self) -> bool:
        """Whether nothing more will arrive."""
        return self.state in (TransferState.DONE, TransferState.FAILED)


class TransferAgent(Protocol):
    """One process's end of transfers from peers; none of its methods but `wait` and `release` waits for a peer."""

    def register_memory(self, memory: memoryview) -> MemoryRegion:
        """Prepare memory for transfers."""
        ...

    def deregister_memory(self, region: MemoryRegion) -> None:
        """End its use; no transfer into it may be in progress."""
        ...

    def initialize_transfer(
        self,
        local: Sequence[LocalDescriptor],
        names: Sequence[BlockName],
        peer: PeerAddress,
        *,
        wait_s: float,
        timeout_s: float,
    ) -> TransferRequest:
        """Describe a read of named blocks; raises ValueError where they do not fit the memory."""
        ...

    def post(self, request: TransferRequest) -> None:
        """Start a transfer; those of one peer are made in the order in which they were posted."""
        ...

    def poll(self, request: TransferRequest) -> TransferState:
        """Return how far a transfer is."""
        ...

    def wait(self, request: TransferRequest, num_blocks: int, timeout_s: float) -> int:
        """Wait until so many blocks have arrived or the transfer has ended; returns how many have arrived."""
        ...

    def release(self, request: TransferRequest) -> None:
        """End a transfer: its memory is not written to any more when this returns."""
        ...

    def close(self) -> None:
        """End all transfers and connections."""
        ...
