"""A published quantized checkpoint with the interface of a plain one: matrices are dequantized when they are read."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from rayinfer.errors import ModelLoadError
from rayinfer.models.checkpoints.checkpoint import Checkpoint
from rayinfer.models.quantized.format_reader import FormatReader
from rayinfer.models.quantized.formats import format_reader
from rayinfer.models.quantized.quantized_matrix import QuantizedMatrix

_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class RoundingError:
    """Change of quantized numbers by rounding them to a dtype, over all matrices that were read."""

    squared_error: float = 0.0
    squared_weight: float = 0.0
    num_matrices: int = 0

    @property
    def relative(self) -> float:
        """Root of the squared error over the squared weights; 0 where nothing was changed."""
        return (self.squared_error / self.squared_weight) ** 0.5 if self.squared_weight else 0.0

    def add(self, exact: torch.Tensor, rounded: torch.Tensor) -> None:
        """Count some rows."""
        self.squared_error += float((exact - rounded.float()).square().sum(dtype=torch.float64))
        self.squared_weight += float(exact.square().sum(dtype=torch.float64))


class QuantizedCheckpoint(Checkpoint):
    """The matrices have the names that they have in the unquantized checkpoint, and are of `dtype`.

    Raises ModelLoadError, in one line that names the file or the tensor.
    """

    def __init__(self, folder: Path, reader: FormatReader, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(folder)
        self._reader, self._dtype, self._folder = reader, dtype, folder
        stored = super().tensor_names
        self._files = Checkpoint(folder)
        with _named(folder):
            self._parts = reader.matrices(stored, self._files)
        taken: frozenset[str] = frozenset().union(*self._parts.values())
        self._plain = stored - taken
        self.error = RoundingError()
        self.num_kept = 0  # matrices that stay as they are

    @property
    def description(self) -> str:
        """The format, and how many matrices have it."""
        return f"{self._reader.description}: {len(self._parts)} matrices"

    @property
    def tensor_names(self) -> frozenset[str]:
        """Every tensor's name, as in the unquantized checkpoint."""
        return self._plain | self._parts.keys()

    def is_quantized(self, name: str) -> bool:
        """Whether a tensor is quantized, so that it has a `matrix`."""
        return name in self._parts

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape without touching its data."""
        if name not in self._parts:
            return super().shape(name)
        with _named(self._folder, name):
            return self._reader.shape(self._files, name)

    def dtype(self, name: str) -> torch.dtype:
        """Return a tensor's dtype."""
        return self._dtype if name in self._parts else super().dtype(name)

    def matrix(self, name: str) -> QuantizedMatrix:
        """Read a quantized matrix as it is."""
        with _named(self._folder, name):
            return self._reader.read(self._files, name)

    def tensors(self, names: Iterable[str] | None = None) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the named tensors (all by default): plain ones as `Checkpoint` does, then dequantized ones."""
        wanted = self.tensor_names if names is None else frozenset(names)
        yield from super().tensors(wanted - self._parts.keys())
        for name in sorted(wanted & self._parts.keys()):
            yield name, self.read(name)

    def read(self, name: str) -> torch.Tensor:
        """Return one tensor."""
        if name not in self._parts:
            return super().read(name)
        matrix = self.matrix(name)
        weight = torch.empty(matrix.codes.shape, dtype=self._dtype)
        for part, numbers in matrix.rows():
            weight[part] = numbers
            self.error.add(numbers, weight[part])
        self.error.num_matrices += 1
        return weight

    def count_kept(self, matrix: QuantizedMatrix) -> None:
        """Count a matrix that stays as it is, whose numbers are rounded to `dtype` when they are multiplied."""
        for _, numbers in matrix.rows():
            self.error.add(numbers, numbers.to(self._dtype))
        self.num_kept += 1

    @property
    def conversion(self) -> str:
        """What was read so far: matrices kept as they are, and dequantized ones, and what rounding has changed."""
        dtype, relative = str(self._dtype).removeprefix("torch."), self.error.relative
        change = f"a relative error of {relative:.1e} (root mean square)" if relative else "no error"
        counts = f"{self.num_kept} are kept as they are and {self.error.num_matrices} dequantized"
        return f"{self.description}, of which {counts}; as {dtype} they have {change}"

    def log_conversion(self) -> None:
        """Log once what was read."""
        if self.error.num_matrices or self.num_kept:
            _logger.info("%s: %s", self._folder, self.conversion)


def open_checkpoint(folder: Path, dtype: torch.dtype = torch.float32) -> Checkpoint:
    """Open a model folder's tensors; matrices that were quantized by others are read as `dtype`."""
    reader = format_reader(folder)
    return Checkpoint(folder) if reader is None else QuantizedCheckpoint(folder, reader, dtype)


def measure_conversion(folder: Path, dtype: torch.dtype) -> str | None:
    """Read all quantized matrices as `dtype` and return what that changes; None for a plain checkpoint."""
    checkpoint = open_checkpoint(folder, dtype)
    if not isinstance(checkpoint, QuantizedCheckpoint):
        return None
    for name in checkpoint.tensor_names:
        if checkpoint.is_quantized(name):
            checkpoint.count_kept(checkpoint.matrix(name))
    dtype_and_error = checkpoint.conversion.partition("; ")[2]
    return f"{checkpoint.description}; {dtype_and_error}"


@contextmanager
def _named(folder: Path, matrix: str | None = None) -> Iterator[None]:
    """Put the folder before messages that lack it, and make errors of wrong sizes a ModelLoadError."""
    try:
        yield
    except ModelLoadError as error:
        if str(folder) in str(error):
            raise
        raise ModelLoadError(f"{folder}: {error}") from None
    except (ValueError, RuntimeError, IndexError, OverflowError) as error:
        of = "a quantized matrix" if matrix is None else f"the quantized matrix {matrix}"
        raise ModelLoadError(f"{folder}: tensors of {of} do not fit each other: {error}") from None
