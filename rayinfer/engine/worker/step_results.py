"""Results of a step in transfer from the device to the host."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rayinfer.decoding.logprobs import LogprobsTensors
from rayinfer.engine.plan.step_plan import Int64Array, LogprobsArrays, SampledTokens

NO_TOKENS = SampledTokens(np.empty(0, np.int64), np.empty(0, np.bool_))


class FinishedStep:
    """The handle of a step whose tokens are on the host."""

    def __init__(self, sampled: SampledTokens) -> None:
        self._sampled = sampled

    def result(self) -> SampledTokens:
        """Return the step's tokens."""
        return self._sampled


class HostCopies:
    """Copies of a GPU's tensors in pinned memory of the host, for which `arrays` waits.

    On a CPU they are the tensors themselves, which must not be written to any more.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._copies: Sequence[torch.Tensor] = tensors
        self._event: torch.cuda.Event | None = None
        if tensors and tensors[0].device.type == "cuda":
            empty = (torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors)
            self._copies = [copy.copy_(tensor, non_blocking=True) for copy, tensor in zip(empty, tensors, strict=True)]
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def arrays(self) -> list[np.ndarray]:
        """Wait for the copies."""
        if self._event is not None:
            self._event.synchronize()
        return [copy.numpy() for copy in self._copies]


class TokenMemory:
    """Device memory of the tokens of rows and of whether they are invalid; one copy reads both."""

    def __init__(self, num_rows: int, device: torch.device) -> None:
        self._memory = torch.zeros(9 * num_rows, dtype=torch.uint8, device=device)
        self.token_ids = self._memory[: 8 * num_rows].view(torch.int64)
        self.is_invalid = self._memory[8 * num_rows :].view(torch.bool)

    def copies(self) -> HostCopies:
        """Start copies of both, of all rows."""
        is_on_gpu = self._memory.device.type == "cuda"
        return _TokenCopies([self._memory if is_on_gpu else self._memory.clone()])


class _TokenCopies(HostCopies):
    def arrays(self) -> list[np.ndarray]:
        (memory,) = super().arrays()
        num_rows = len(memory) // 9
        return [memory[: 8 * num_rows].view(np.int64), memory[8 * num_rows :].view(np.bool_)]


class PendingLogprobs:
    """Logprobs in transfer, with the rows and positions of their tokens."""

    def __init__(self, rows: Int64Array, positions: Int64Array, parts: Sequence[LogprobsTensors]) -> None:
        self._rows, self._positions = rows, positions
        columns = ([part.token_ids for part in parts], [part.logprobs for part in parts])
        self._copies = HostCopies([*map(torch.cat, columns), torch.cat([part.ranks for part in parts])])

    def result(self) -> LogprobsArrays:
        """Wait for the copies."""
        token_ids, logprobs, ranks = self._copies.arrays()
        return LogprobsArrays(
            rows=self._rows,
            positions=self._positions,
            token_ids=token_ids.astype(np.int32),
            logprobs=logprobs,
            ranks=ranks.astype(np.int32, copy=False),
        )


@dataclass(frozen=True, slots=True)
class PendingSample:
    """The handle of a step whose tokens are in transfer; only the first `count` of them are valid."""

    copies: HostCopies  # of the tokens, and of whether they are invalid
    count: int
    logprobs: PendingLogprobs | None = None
    prompt_logprobs: PendingLogprobs | None = None
    errors: dict[int, str] | None = None  # of grammars, by row

    def result(self) -> SampledTokens:
        """Wait for the step's tokens."""
        token_ids, is_invalid = self.copies.arrays()
        return SampledTokens(
            token_ids[: self.count],
            is_invalid[: self.count],
            None if self.logprobs is None else self.logprobs.result(),
            None if self.prompt_logprobs is None else self.prompt_logprobs.result(),
            self.errors,
        )
