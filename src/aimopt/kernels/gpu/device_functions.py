"""Functions that the printed kernels call, on numbers of any width: `divide`, `round_stochastically`, `decode`.

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
    """`a` to the power of b, in float64: an error of b·log2(a) is an error of the exponent."""
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
def random_bits(bits: tl.constexpr, element, key, low_bits: tl.constexpr, block: tl.constexpr):
    """The function of this name in `step/precision.py`, to the same bits."""
    summand = scramble((element // block).to(tl.uint32) ^ key)
    line = scramble((element % block).to(tl.uint32)) * (scramble(summand) | 1) + summand
    hashed = line ^ (line >> 16)
    return (hashed & ((1 << bits) - 1) if low_bits else hashed >> (32 - bits)).to(tl.int32)


@triton.jit
def round_stochastically(x, dtype: tl.constexpr, random):
    """The function of this name in `step/precision.py`, to the same bits; `random` has 16 bits per element."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.abs(x)
    if dtype == tl.bfloat16:
        rounded = ((bits + random) & -0x10000).to(tl.float32, bitcast=True)
        rounded = tl.where(magnitude < float("inf"), rounded, x)
    else:
        normal = ((bits + (random >> 3)) & -0x2000).to(tl.float32, bitcast=True)
        small = x + ((random.to(tl.float32) + 0.5) * 2.0**-40 - 2.0**-25)
        rounded = tl.where(magnitude < 2.0**-14, small, tl.where(magnitude < 65520.0, normal, x))
    return to_nearest(rounded, dtype)


@triton.jit
def number_of(level, shift: tl.constexpr):
    """The number whose upper bits are this level."""
    return (level << shift).to(tl.float32, bitcast=True)


@triton.jit
def decode(codes, scale, shift: tl.constexpr):
    """The numbers of 8-bit codes, each with the scale of its block, as in `step/quantization.py`."""
    code = codes.to(tl.int32)
    magnitude = number_of(tl.abs(code) + (scale.to(tl.int32, bitcast=True) >> shift), shift) - scale
    return tl.where(code < 0, -magnitude, magnitude)


@triton.jit
def larger_integer(a, b):
    """The larger one of two integers. `tl.max` would not be interpreted in the tests."""
    return tl.maximum(a, b)


@triton.jit
def encode(
    x, inside, jitter,
    levels: tl.constexpr, mantissa: tl.constexpr, lowest_base: tl.constexpr, largest_coded: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """The codes of numbers, and the scale of each block of them, as in `step/quantization.py`."""
    shift: tl.constexpr = 23 - mantissa
    growth: tl.constexpr = 1 + 1 / (1 << ((levels + 1) >> mantissa))
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.where(inside, bits & 0x7FFFFFFF, 0)
    blocks: tl.constexpr = x.shape[0] // block
    largest = tl.reduce(tl.reshape(magnitude, [blocks, block]), 1, larger_integer)
    number = tl.where(largest <= largest_coded, largest, 0).to(tl.float32, bitcast=True)
    grown = ((number * growth).to(tl.int32, bitcast=True) + ((1 << shift) - 1)) >> shift
    top = tl.maximum(grown, levels + lowest_base)
    base = top - levels
    base += (number_of(top, shift) - number_of(base, shift) < number).to(tl.int32)
    scale = tl.where(largest <= largest_coded, number_of(base, shift), float("nan"))
    # 0 marks a block whose codes are 0.
    marked = tl.where((largest > 0) & (largest <= largest_coded), base, 0)
    base_of_element = tl.reshape(tl.broadcast_to(marked[:, None], [blocks, block]), [blocks * block])
    sums = magnitude.to(tl.float32, bitcast=True) + number_of(base_of_element, shift)
    level = ((sums.to(tl.int32, bitcast=True) + jitter) >> shift) - base_of_element
    level = tl.maximum(level, 1) if levels == 255 else tl.where(bits < 0, -level, level)
    return tl.where(base_of_element == 0, 0, level), scale
