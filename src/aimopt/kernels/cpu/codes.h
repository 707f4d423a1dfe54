// Generated from kernels/layout.py by kernels/cpu/header.py. Do not edit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aimopt {

// Random numbers: the elements per line.
constexpr size_t kHashBlock = 128;

// Numbers in 8 bits: the elements per scale, the bits of mantissa in a level, the bits of a number below those of
// its level, the lowest level of a scale, and the bits of the largest number.
constexpr size_t kCodeBlock = 128;
constexpr uint32_t kMantissa = 5, kCodeShift = 18;
constexpr uint32_t kLowestBase = 192, kLargestCoded = 0x7f000000U;

}  // namespace aimopt
