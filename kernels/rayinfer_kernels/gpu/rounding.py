"""Rounding from float32 to a smaller type inside a kernel: to the nearest, ties to even, as torch does it."""

from rayinfer_kernels.gpu.language import IS_INTERPRETED, tl, triton

# Triton's interpreter cuts off on the way to bfloat16, and rounds ties up on the way to eight bits.
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)
_EIGHT_BITS_SMALLEST = tl.constexpr(2.0**-6)  # of normal numbers in e4m3; smaller ones are multiples of 2^-9
_ROUNDS_TO_2_TO_MINUS_9 = tl.constexpr(1.5 * 2.0**14)  # float32 keeps no more digits beside it


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """`x` in float32 as numbers of `dtype`; those of eight bits have to be within its range."""
    if _IS_INTERPRETED and dtype == tl.bfloat16:
        x = _nearest(x, 16)
    if _IS_INTERPRETED and dtype == tl.float8e4nv:
        small = (x + _ROUNDS_TO_2_TO_MINUS_9) - _ROUNDS_TO_2_TO_MINUS_9
        x = tl.where(tl.abs(x) >= _EIGHT_BITS_SMALLEST, _nearest(x, 20), tl.where(small == 0.0, x * 0.0, small))
    return x.to(dtype)


@triton.jit
def _nearest(x, num_bits: tl.constexpr):
    """`x` rounded to float32 numbers whose last `num_bits` bits are zero."""
    bits = x.to(tl.int32, bitcast=True)
    upwards = (1 << (num_bits - 1)) - 1 + ((bits >> num_bits) & 1)
    nearest = ((bits + upwards) & -(1 << num_bits)).to(tl.float32, bitcast=True)
    return tl.where(x == x, nearest, x)
