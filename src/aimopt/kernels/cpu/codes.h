// Generated from kernels/layout.py by kernels/cpu/header.py. Do not edit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aimopt {

// Numbers in 8 bits: the elements per scale, the bits of a number below those of its level, how many levels are
// equal steps, and a lower bound of the levels below a block's.
constexpr size_t kCodeBlock = 128;
constexpr uint32_t kCodeShift = 18, kEqual = 32;
constexpr uint32_t kLowestBase = 160;

}  // namespace aimopt
