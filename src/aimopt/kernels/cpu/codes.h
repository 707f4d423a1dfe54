// Generated from kernels/layout.py by kernels/cpu/header.py. Do not edit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aimopt {

// Numbers in 8 bits: the elements per scale, and the bits below those of a level.
constexpr size_t kCodeBlock = 128;
constexpr int kCodeShift = 19;

}  // namespace aimopt
