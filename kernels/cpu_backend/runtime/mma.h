// One warp-wide matrix multiply-accumulate, decoded for integer arithmetic.
#pragma once

#include <cstdint>

namespace simt {

// value = significand * 2^(exponent - 10). Not normalised: a subnormal keeps the smallest exponent of its format, which is
// what the hardware aligns by. Zero has a very small exponent, so that it never sets the alignment.
struct MmaElement {
    int32_t significand;
    int32_t exponent;
    bool special() const { return exponent >= kSpecial; }
    static constexpr int32_t kSpecial = 1 << 20;  // infinity: significand +-1; NaN: significand 0
    static constexpr int32_t kZero = -(1 << 16);
};

struct MmaTile {
    MmaElement a[16][16];  // row, k
    MmaElement b[16][8];   // k, column
    float c[16][8];        // accumulator in, result out
    int depth;             // terms of k in use: 16, or 8 for tf32
};

MmaElement decode16(uint16_t bits, int format);
MmaElement decode_tf32(uint32_t bits);
void multiply_accumulate(MmaTile& tile, int format, int model);

}  // namespace simt
