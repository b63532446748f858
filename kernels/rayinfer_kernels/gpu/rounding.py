"""From float32 to a model's type inside a kernel, rounded to the nearest, ties to even, as torch does it."""

from rayinfer_kernels.gpu.language import IS_INTERPRETED, tl, triton

_CUTS_OFF = tl.constexpr(IS_INTERPRETED)  # Triton's interpreter does, on the way to bfloat16


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """`x` in float32 as numbers of `dtype`."""
    if _CUTS_OFF and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        upwards = 0x7FFF + ((bits >> 16) & 1)
        nearest = ((bits + upwards) & -65536).to(tl.float32, bitcast=True)
        x = tl.where(x == x, nearest, x)
    return x.to(dtype)
