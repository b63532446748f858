"""Transfers between pipeline stages: hidden states of a step's tokens, and encoder outputs."""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroup, Work

from rayinfer.tensor_parallel import RankCoordinates

MAX_IN_FLIGHT = 2  # steps that a stage may be ahead of the next one


class PipelineLink:
    """A rank's peers of the same tensor rank: in the stage before, in the one after, and in all stages.

    A stage continues as soon as its send is started; it waits only when `MAX_IN_FLIGHT` sends are in flight. Raises
    RuntimeError when a peer is gone, or takes longer than the group's timeout.
    """

    def __init__(
        self,
        coordinates: RankCoordinates,
        world: ProcessGroup,
        device: torch.device,
        hidden_size: int,
        dtype: torch.dtype,
    ) -> None:
        self._world = world
        size = coordinates.tensor_parallel_size
        self._rank_before = coordinates.rank - size
        self._rank_after = coordinates.rank + size
        self._same_in_all_stages = range(coordinates.tensor_rank, coordinates.world_size, size)
        self._device = device
        self._hidden_size = hidden_size
        self._dtype = dtype
        self._sent: deque[tuple[list[Work], torch.Tensor]] = deque()  # a tensor must live until it is sent
        self.waiting_s = 0.0  # for the stages before and after

    def receive(self, num_tokens: int) -> torch.Tensor:
        """Wait for the hidden states of the stage before: [num_tokens, hidden_size]."""
        return self._receive(num_tokens, self._rank_before)

    def receive_from_last(self, num_tokens: int) -> torch.Tensor:
        """Wait, in any other stage, for what the last one broadcasts: [num_tokens, hidden_size]."""
        return self._receive(num_tokens, self._same_in_all_stages[-1])

    def send_next(self, hidden: torch.Tensor) -> None:
        """Start to send a step to the next stage."""
        self._send(hidden, [self._rank_after])

    def broadcast_from_last(self, hidden: torch.Tensor) -> None:
        """Start to send, from the last stage, the encoder's output to all others."""
        self._send(hidden, self._same_in_all_stages[:-1])

    def _receive(self, num_tokens: int, rank: int) -> torch.Tensor:
        started = time.perf_counter()
        hidden = torch.empty(num_tokens, self._hidden_size, dtype=self._dtype, device=self._device)
        self._world.recv([hidden], rank, 0).wait()
        self.waiting_s += time.perf_counter() - started
        return hidden

    def _send(self, hidden: torch.Tensor, ranks: Sequence[int]) -> None:
        started = time.perf_counter()
        while len(self._sent) >= MAX_IN_FLIGHT:
            for work in self._sent.popleft()[0]:
                work.wait()
        hidden = hidden.contiguous()
        self._sent.append(([self._world.send([hidden], rank, 0) for rank in ranks], hidden))
        self.waiting_s += time.perf_counter() - started


@dataclass(frozen=True, slots=True)
class Stage:
    """A rank's part of a step: its coordinates, and the link to the other stages where there are any."""

    coordinates: RankCoordinates
    link: PipelineLink | None = None

    @property
    def samples(self) -> bool:
        """Whether this rank samples tokens: one does, though all ranks of the last stage have the logits."""
        return self.coordinates.is_last_stage and self.coordinates.tensor_rank == 0


ONLY_STAGE = Stage(RankCoordinates())
