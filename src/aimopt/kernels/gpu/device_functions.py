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


@triton.jit
def decode(codes, scale, levels: tl.constexpr, shift: tl.constexpr, equal: tl.constexpr, lowest_base: tl.constexpr):
    """The numbers of 8-bit codes, each with the scale of its block, as in `step/quantization.py`."""
    code, bits = codes.to(tl.int32), scale.to(tl.int32, bitcast=True)
    base = tl.maximum((bits >> shift) - levels, lowest_base)
    step = ((base + equal) << shift).to(tl.float32, bitcast=True) * (1 / equal)
    magnitude = ((tl.abs(code) + base) << shift).to(tl.float32, bitcast=True)
    large = tl.where(code < 0, -magnitude, magnitude)
    number = tl.where(tl.abs(code) > equal, large, code.to(tl.float32) * step)
    return tl.where((bits & 0x7FFFFFFF) < 0x7F800000, number, float("nan"))


@triton.jit
def hashed_bits(key, low_half: tl.constexpr, element):
    """A random number of 16 bits per element."""
    hashed = scramble(element.to(tl.uint32) ^ key)
    return (hashed & 0xFFFF if low_half else hashed >> 16).to(tl.int32)


@triton.jit
def larger_integer(a, b):
    """The larger one of two integers. `tl.max` would not be interpreted in the tests."""
    return tl.maximum(a, b)


@triton.jit
def encode(
    x, inside, random,
    stochastic: tl.constexpr, levels: tl.constexpr, shift: tl.constexpr, equal: tl.constexpr, lowest_base: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """The codes of numbers, and the scale of each block of them, as in `step/quantization.py`."""
    bits = x.to(tl.int32, bitcast=True)
    magnitude = tl.where(inside, bits & 0x7FFFFFFF, 0)
    blocks: tl.constexpr = x.shape[0] // block
    largest = tl.minimum(tl.reduce(tl.reshape(magnitude, [blocks, block]), 1, larger_integer), 0x7F800000)
    top = tl.minimum((largest + ((1 << shift) - 1)) >> shift, (0x7F800000 >> shift) - 1)
    scale = tl.where(largest < 0x7F800000, (top << shift).to(tl.float32, bitcast=True), float("nan"))
    # −1 marks a block that is not finite.
    marked = tl.where(largest < 0x7F800000, top, -1)
    top_of_element = tl.reshape(tl.broadcast_to(marked[:, None], [blocks, block]), [blocks * block])
    base = tl.maximum(top_of_element - levels, lowest_base)
    bottom = (base + equal) << shift
    steps_per_unit = divide(tl.full([blocks * block], equal, tl.float32), bottom.to(tl.float32, bitcast=True))
    if stochastic:
        jitter = random << (shift - 16)
        addend = (random.to(tl.float32) + 0.5) * 2.0**-16
    else:
        jitter = 1 << (shift - 1)
        addend = 0.5
    small_size = tl.minimum(magnitude, bottom).to(tl.float32, bitcast=True)
    small = (small_size * steps_per_unit + addend).to(tl.int32)
    if levels == 255:
        small = tl.where(magnitude > 0, tl.maximum(small, 1), 0)
    large = tl.minimum(((magnitude + jitter) >> shift) - base, levels)
    level = tl.where(magnitude < bottom, small, large)
    if levels == 127:
        level = tl.where(bits < 0, -level, level)
    return tl.where(top_of_element < 0, 0, level), scale
