"""Scores of a row and their weights, rounded as exactly as on a CPU, for the kernels that sample."""

from rayinfer_kernels.gpu.language import IS_INTERPRETED, tl, triton

UNLIKELY = tl.constexpr(88.0)  # so far below the best a token has no weight
LEAST_WEIGHT = tl.constexpr(2.0**-125 * (1 + 2.0**-23))  # less is none: float32 would soon have no normal number
_LOWEST_EXPONENT = tl.constexpr(-87.0)
_LOWEST_SCORE = tl.constexpr(-1.0e30)  # instead of minus infinity, whose difference with itself is no number
_ROUNDING = tl.constexpr(1.5 * 2.0**23)  # a small number added to it is rounded to an integer, its lowest bits
_IS_INTERPRETED = tl.constexpr(IS_INTERPRETED)


@triton.jit
def ordered(x):
    """Return an integer per number of float32 that is not NaN, in the order of the numbers; both zeros are one."""
    bits = x.to(tl.int32, bitcast=True)
    return tl.where(bits < 0, -2147483648 - bits, bits)


@triton.jit
def number_of(key):
    """Return the number that `ordered` made this integer of."""
    return tl.where(key < 0, -2147483648 - key, key).to(tl.float32, bitcast=True)


@triton.jit
def weight_of(scaled, highest, least=LEAST_WEIGHT):
    """e^(scaled - highest) in float32 to its last digits, and 0 for what is less than `least`."""
    exponent = tl.maximum(scaled - highest, _LOWEST_EXPONENT)
    # Conversions and floor have an eighth of an addition's throughput, so both are additions.
    rounded = exponent * 1.4426950408889634 + _ROUNDING
    power = rounded - _ROUNDING
    # ln 2 in two parts, the first so short that its product is exact; the GPU's exp is exact to the digit near 0 only.
    rest = (exponent - power * 0.693359375) + power * 2.12194440e-4
    bits = _exp_near_0(rest).to(tl.int32, bitcast=True) + (rounded.to(tl.int32, bitcast=True) << 23)
    weight = bits.to(tl.float32, bitcast=True)
    return tl.where(weight >= least, weight, 0.0)


@triton.jit
def _exp_near_0(x):
    if _IS_INTERPRETED:
        return tl.exp(x)
    # As `tl.exp`, without three instructions for results below the normal range.
    scaled = x * 1.4426950408889634
    return tl.inline_asm_elementwise(
        "ex2.approx.ftz.f32 $0, $1;", "=f,f", [scaled], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def quotient(x, divisor, inverse):
    """x / divisor, rounded to the nearest, for an `inverse` that is (Markstein, Theorem 8.2: two corrections)."""
    if _IS_INTERPRETED:  # it has no fused multiplication and addition
        return tl.div_rn(x, divisor)
    x = tl.maximum(x, _LOWEST_SCORE)
    result = x * inverse
    result = tl.fma(tl.fma(-result, divisor, x), inverse, result)
    return tl.fma(tl.fma(-result, divisor, x), inverse, result)


@triton.jit
def load_scores(scores, start, width, block: tl.constexpr):
    """Return a block of scores, -inf behind the row."""
    within = start + tl.arange(0, block)
    return tl.load(scores + within, mask=within < width, other=float("-inf"))


@triton.jit
def scaled_at(scores, start, width, temperature, block: tl.constexpr):
    """Return a block of scores over the temperature, -inf behind the row."""
    x = load_scores(scores, start, width, block).to(tl.float32)
    return quotient(x, temperature, tl.div_rn(1.0, temperature))
