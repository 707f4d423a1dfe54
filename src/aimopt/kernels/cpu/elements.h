// What kernels of all instruction sets share: sizes, and the elements of streams.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#include "codes.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#if !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // of this header: it leaves vectors undefined on purpose
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif

#if defined(__GNUC__) || defined(__clang__)
#define AIMOPT_INLINE inline __attribute__((always_inline))
#define AIMOPT_NEVER_INLINE __attribute__((noinline))
#else
#define AIMOPT_INLINE inline
#define AIMOPT_NEVER_INLINE
#endif

namespace aimopt {

// Straight-line code works on chunks, and prefetches memory this many elements ahead: 12 lines of float32. That measured
// best, or as good as none, where it helps little because the processor prefetches well itself.
constexpr int kChunk = 32;
constexpr size_t kAhead = 192;

// Elements of 16-bit streams.
struct BFloat16 {
    uint16_t bits;
};
struct Float16 {
    uint16_t bits;
};

// Elements of 8-bit streams: floating point with few bits, relative to the scale of the element's block.
struct Int8 {
    using Code = int8_t;
    static constexpr uint32_t levels = INT8_MAX;
    Code code;
};
struct UInt8 {
    using Code = uint8_t;
    static constexpr uint32_t levels = UINT8_MAX;
    Code code;
};
template <class Stream>
constexpr bool is_coded = sizeof(Stream) == 1;

// Which draw a 16-bit stream takes, the last of these: the number of 16-bit streams before it.
template <size_t Last, class... Streams>
constexpr uint32_t draw_of() {
    const bool narrow[] = {(sizeof(Streams) == 2)...};
    uint32_t draw = 0;
    for (size_t k = 0; k < Last; k++) draw += narrow[k];
    return draw;
}

// Which draw an 8-bit stream takes: those of 16 bits come first. The last of all streams, the gradient, is not rounded.
template <size_t Stream, class... Streams>
constexpr uint32_t draw_of_coded() {
    const size_t sizes[] = {sizeof(Streams)...};
    uint32_t draw = 0;
    for (size_t k = 0; k + 1 < sizeof...(Streams); k++) draw += sizes[k] == 2 || (k < Stream && sizes[k] == 1);
    return draw;
}

// The number of 8-bit streams before this one: which scales are its own.
template <size_t Stream, class... Streams>
constexpr size_t scale_of() {
    const size_t sizes[] = {sizeof(Streams)...};
    size_t scale = 0;
    for (size_t k = 0; k < Stream; k++) scale += sizes[k] == 1;
    return scale;
}

}  // namespace aimopt
