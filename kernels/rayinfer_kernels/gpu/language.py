"""Triton, as all kernels of this folder import it; where it is not installed they import too, but none can be launched.

Kernels are compiled for a GPU, or run by Triton's interpreter on CPU tensors where TRITON_INTERPRET=1 was set before
Triton was imported. The interpreter of Triton 3.6 has faults of its own: a dot product of bfloat16 numbers is garbage,
and float32 is cut off instead of rounded on its way to bfloat16.
"""

from functools import cache
from typing import Any, NoReturn

import torch

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:

    class _Absent:
        """Stub of Triton where it is not installed: decorates kernels and has every name of annotations."""

        def __getattr__(self, name: str) -> "_Absent":
            if name.startswith("__"):
                raise AttributeError(name)
            return self

        def __call__(self, *_args: object, **_settings: object) -> "_Absent":
            return self

        def __getitem__(self, _grid: object) -> NoReturn:
            raise RuntimeError("Triton is not installed, and without it no GPU kernel runs: pip install triton")

    triton = tl = gdc_wait = gdc_launch_dependents = _Absent()

__all__ = [
    "HAS_TRITON",
    "IS_INTERPRETED",
    "dot_dtype",
    "gdc_launch_dependents",
    "gdc_wait",
    "next_power_of_2",
    "supports_pdl",
    "tl",
    "triton",
]

HAS_TRITON: bool = hasattr(triton, "__version__")
IS_INTERPRETED: bool = HAS_TRITON and bool(triton.knobs.runtime.interpret)


def dot_dtype(dtype: torch.dtype) -> Any:
    """Return the type of both operands of `tl.dot` in a model of this type: float32 in the interpreter, else the type.

    It is a Triton type: pass it as a constexpr. Give `tl.dot` input_precision="ieee", or float32 becomes tf32.
    """
    if IS_INTERPRETED or dtype is torch.float32:
        return tl.float32
    return {torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}[dtype]


def next_power_of_2(number: int) -> int:
    """Return the smallest power of two that is not below a positive number: the lengths of Triton's ranges."""
    return 1 << (number - 1).bit_length()


def supports_pdl(device: torch.device) -> bool:
    """Return whether kernels on this device can be launched before the previous one has ended.

    With programmatic dependent launch (PDL, compute capability 9.0) a kernel whose `PDL` is true calls
    `gdc_launch_dependents` first, which lets the next kernel start as soon as it fits, loads what no kernel of
    the step writes (weights, the step's inputs), and calls `gdc_wait` before anything else: then all kernels before it
    have ended, for each of them waits, too. Every program has to wait, also one that has nothing to do.
    """
    return not IS_INTERPRETED and (device.type != "cuda" or _capability(device.index) >= (9, 0))


@cache
def _capability(index: int | None) -> tuple[int, int]:
    return torch.cuda.get_device_capability(index)
