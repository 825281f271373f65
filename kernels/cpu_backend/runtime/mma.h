// One warp-wide matrix multiply-accumulate, decoded for integer arithmetic.
#pragma once

#include <cstdint>

namespace simt {

// value = significand * 2^(exponent - 10). Not normalised: a subnormal keeps the smallest exponent of its format, which is
// what the hardware aligns by.
struct MmaElement {
    int32_t significand;  // 11 bits and a sign
    int32_t exponent;

    static constexpr int32_t kZeroExponent = -(1 << 16);  // never the largest of a sum
    static constexpr int32_t kSpecialExponent = 1 << 20;  // infinity: significand +-1; NaN: significand 0
    bool special() const { return exponent == kSpecialExponent; }
};

struct alignas(64) MmaTile {
    int32_t b_significand[16][8], b_exponent[16][8];    // k, column
    int32_t a_significand[16][16], a_exponent[16][16];  // row, k
    float c[16][8];                                     // row, column: accumulator in, result out
    int depth;                                          // terms: 16, or 8 for tf32
    bool any_special;                                   // among a and b

    void set_a(int row, int k, MmaElement element) {
        a_significand[row][k] = element.significand;
        a_exponent[row][k] = element.exponent;
        any_special |= element.special();
    }
    void set_b(int k, int column, MmaElement element) {
        b_significand[k][column] = element.significand;
        b_exponent[k][column] = element.exponent;
        any_special |= element.special();
    }
};

// Decodes sign, exponent field and 10-bit fraction; `fields` is the number of exponent codes, `bias` that of the format.
inline MmaElement decode_fields(uint32_t negative, int32_t exponent, uint32_t fraction, int32_t codes, int32_t bias) {
    if (exponent == codes - 1) return {fraction ? 0 : (negative ? -1 : 1), MmaElement::kSpecialExponent};
    const int32_t magnitude = static_cast<int32_t>(fraction | (exponent ? 1u << 10 : 0u));
    const int32_t unbiased = (exponent ? exponent : 1) - bias;
    return {negative ? -magnitude : magnitude, magnitude ? unbiased : MmaElement::kZeroExponent};
}
inline MmaElement decode_half(uint32_t bits) {
    return decode_fields(bits >> 15, static_cast<int32_t>(bits >> 10 & 0x1f), bits & 0x3ff, 32, 15);
}
inline MmaElement decode_bfloat16(uint32_t bits) {
    return decode_fields(bits >> 15, static_cast<int32_t>(bits >> 7 & 0xff), (bits & 0x7f) << 3, 256, 127);
}
inline MmaElement decode_tf32(uint32_t bits) {  // the 13 low bits of the register are ignored
    return decode_fields(bits >> 31, static_cast<int32_t>(bits >> 23 & 0xff), bits >> 13 & 0x3ff, 256, 127);
}

void multiply_accumulate(MmaTile& tile, int model);

}  // namespace simt
