"""Choice of the distance at which the CPU kernels prefetch weights, by timing a model's own, once per machine.

Steps of few rows read weights at the memory's speed. How early a line must be asked for, to be there in time, follows
the memory's latency and bandwidth: from 1 KiB on some processors to 24 KiB on others, for a tenth of a step's time and
more. Results are the same bits with any distance.
"""

import contextlib
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import filelock
import torch

import rayinfer_kernels
from rayinfer.layers.linear import Linear
from rayinfer.layers.matrix import Matrix
from rayinfer.models.kernel_measurements import KernelMeasurements
from rayinfer_kernels import ops

DISTANCES = (1024, 3072, 6144, 9216, 12288, 24576)  # bytes
FEW_ROWS = (1, 2)  # with more, products begin to take longer than reading
MORE_ROWS = (8, 12)
NUM_RUNS = 5
LEAST_GAIN = 1.04  # over the default, or it stays
SPREAD = 0.03  # of equal gains
LEAST_BYTES, MOST_BYTES = 32 << 20, 96 << 20  # of the weights that are timed: fewer may come from a cache
MOST_SECONDS = 0.01  # of all products once
LOCK_TIMEOUT_S = 30.0


def tune_prefetch(model: object, dtype: torch.dtype, device: torch.device, folder: Path) -> None:
    """Choose distances for each format of a model's packed weights, or take those that `folder` has from before."""
    if device.type != "cpu" or not rayinfer_kernels.has_kernels(device, dtype):
        return
    assert isinstance(model, torch.nn.Module)
    matrices = [module for module in model.modules() if isinstance(module, Matrix) and module.packed is not None]
    samples = dict(_samples(matrices))
    if not samples:
        return
    with _one_process(folder):  # others would disturb each other's timings
        measured = KernelMeasurements(folder, dtype)
        for weight_format, sample in samples.items():
            distances = _choose(measured, weight_format, sample, dtype)
            for matrix in matrices:
                if matrix.packed is not None and matrix.packed.format == weight_format:
                    matrix.packed.prefetch = distances
        measured.save()


def _samples(matrices: Sequence[Matrix]) -> Iterator[tuple[ops.WeightFormat, list[ops.PackedWeight]]]:
    """Yield each format of linear layers whose weights no cache holds, with the weights to be timed."""
    packed = [each.packed for each in matrices if isinstance(each, Linear) and each.packed is not None]
    for weight_format in dict.fromkeys(weight.format for weight in packed):
        sample: list[ops.PackedWeight] = []
        num_bytes = 0
        for weight in packed:
            is_small = not sample or num_bytes + weight.panels.nbytes <= MOST_BYTES
            if weight.format == weight_format and is_small:
                sample.append(weight)
                num_bytes += weight.panels.nbytes
        if num_bytes >= LEAST_BYTES:
            yield weight_format, sample


def _choose(
    measured: KernelMeasurements, weight_format: ops.WeightFormat, sample: list[ops.PackedWeight], dtype: torch.dtype
) -> ops.PrefetchDistances:
    shape = f"{sample[0].num_rows}x{sample[0].in_features}"
    chosen = [
        measured.find(f"prefetch {weight_format.name} {shape} {name}", lambda: _fastest(sample, rows, dtype))  # noqa: B023
        for name, rows in (("few rows", FEW_ROWS), ("more rows", MORE_ROWS))
    ]
    return ops.PrefetchDistances(*(int(distance) if distance in DISTANCES else 0 for distance in chosen))


def _fastest(sample: list[ops.PackedWeight], num_rows: Sequence[int], dtype: torch.dtype) -> int:
    """Return the distance with which products of these numbers of rows take least time; 0 stands for the default.

    Of those that are about as fast it is the shortest: what is fetched behind the end of a weight is fetched in vain.
    """
    gains = dict.fromkeys(DISTANCES, 1.0)
    for rows in num_rows:
        seconds = _time_distances(sample, rows, dtype)
        for distance in DISTANCES:
            gains[distance] *= math.sqrt(seconds[0] / max(seconds[distance], 1e-9))
    most = max(gains.values())
    return next(distance for distance in DISTANCES if gains[distance] > most - SPREAD) if most >= LEAST_GAIN else 0


def _time_distances(sample: list[ops.PackedWeight], rows: int, dtype: torch.dtype) -> dict[int, float]:
    """Return the median seconds of all products with each distance, and with the default's under 0; they take turns."""
    seconds: dict[int, list[float]] = {0: [], **{distance: [] for distance in DISTANCES}}
    order = random.Random(0)
    rayinfer_kernels.time_products(sample, rows, dtype)  # a warm-up
    if rayinfer_kernels.time_products(sample, rows, dtype) > MOST_SECONDS:  # products, not memory, take the time
        return dict.fromkeys(seconds, 1.0)
    for _ in range(NUM_RUNS):
        for distance in order.sample(list(seconds), len(seconds)):
            for weight in sample:
                weight.prefetch = ops.PrefetchDistances(distance, distance)
            seconds[distance].append(rayinfer_kernels.time_products(sample, rows, dtype))
    return {distance: statistics.median(found) for distance, found in seconds.items()}


@contextlib.contextmanager
def _one_process(folder: Path) -> Iterator[None]:
    """Let the processes of a machine take turns; where the folder cannot be locked, they do not."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a timeout is one
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(filelock.FileLock(folder / "prefetch.lock", timeout=LOCK_TIMEOUT_S))
        yield
