"""Functions that the printed kernels call, on numbers of any width: `divide`, `power`, `round_stochastically`.

Only `launch.py` imports this, when it compiles its first kernel: importing Triton takes a second, and it may be absent.
They have no annotations, which Triton would look up. They use nothing that its interpreter lacks, such as libdevice, so
that the tests need no GPU.
"""

import triton
import triton.language as tl


@triton.jit
def divide(a, b):
    """a/b, rounded as IEEE requires; Triton's own division of float32 is an approximation."""
    if a.dtype == tl.float32:
        return tl.div_rn(a, b)
    else:  # noqa: RET505 (only in this form does Triton compile just the branch that is taken)
        return a / b


@triton.jit
def root(a):
    """√a, rounded as IEEE requires."""
    if a.dtype == tl.float32:
        return tl.sqrt_rn(a)
    else:  # noqa: RET505
        return tl.sqrt(a)


@triton.jit
def larger(a, b):
    """The larger number, or NaN if either is NaN."""
    return tl.where((a > b) | (a != a), a, b)


@triton.jit
def smaller(a, b):
    """The smaller number, or NaN if either is NaN."""
    return tl.where((a < b) | (a != a), a, b)


@triton.jit
def power(a, b):
    """A to the power of b, in float64: an error of b·log2(a) is an error of the exponent."""
    base, exponent = a.to(tl.float64), b.to(tl.float64)
    magnitude = tl.exp2(exponent * tl.log2(tl.abs(base)))
    half = exponent * 0.5
    is_integer, is_even = tl.floor(exponent) == exponent, tl.floor(half) == half
    of_negative = tl.where(is_integer, tl.where(is_even, magnitude, -magnitude), float("nan"))
    return tl.where((exponent == 0) | (base == 1), 1.0, tl.where(base < 0, of_negative, magnitude)).to(a.dtype)


@triton.jit
def tanh(a):
    """The hyperbolic tangent: by exponentials, and by its series near 0, where exponentials cancel."""
    x = a.to(tl.float64)
    small, square = tl.exp(-2 * tl.abs(x)), x * x
    of_large = tl.where(x < 0, small - 1, 1 - small) / (1 + small)
    of_small = x * (1 - square * (1 / 3 - square * (2 / 15 - square * (17 / 315))))
    return tl.where(square < 1e-4, of_small, of_large).to(a.dtype)


@triton.jit
def scramble(x):
    """The hash of `step/precision.py`, of unsigned 32-bit numbers."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def widen(x, dtype: tl.constexpr):
    """Convert to a wider type. bfloat16 by its bits, as below: Triton's interpreter truncates where a GPU rounds."""
    if x.dtype == tl.bfloat16:
        return (x.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:  # noqa: RET505
        return x.to(dtype)


@triton.jit
def to_nearest(x, dtype: tl.constexpr):
    """Convert to a narrower type, ties to even."""
    if dtype == tl.bfloat16:
        bits = x.to(tl.uint32, bitcast=True)
        nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        nan = (bits & 0x7FFFFFFF) > 0x7F800000
        return tl.where(nan, 0x7FC0, nearest).to(tl.uint16).to(dtype, bitcast=True)
    else:  # noqa: RET505
        return x.to(dtype)


@triton.jit
def round_stochastically(x, dtype: tl.constexpr, key, low_half: tl.constexpr, element):
    """The function of this name in `step/precision.py`, to the same bits."""
    hashed = scramble(element.to(tl.uint32) ^ key)
    random = hashed & 0xFFFF if low_half else hashed >> 16
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = tl.abs(x)
    if dtype == tl.bfloat16:
        rounded = ((bits + random) & 0xFFFF0000).to(tl.float32, bitcast=True)
        rounded = tl.where(magnitude < float("inf"), rounded, x)
    else:
        normal = ((bits + (random >> 3)) & 0xFFFFE000).to(tl.float32, bitcast=True)
        small = x + ((random.to(tl.float32) + 0.5) * 2.0**-40 - 2.0**-25)
        rounded = tl.where(magnitude < 2.0**-14, small, tl.where(magnitude < 65520.0, normal, x))
    return to_nearest(rounded, dtype)
