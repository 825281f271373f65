// Arithmetic of mma.sync on the decoded operands.
#include "mma.h"

#include <cmath>
#include <cstring>

#include "state.h"

namespace simt {

MmaElement decode_fields(uint32_t sign, int32_t exponent, uint32_t fraction, int32_t bias, int32_t top, int shift) {
    if (exponent == top) return {fraction ? 0 : (sign ? -1 : 1), MmaElement::kSpecial};
    if (exponent == 0 && fraction == 0) return {0, MmaElement::kZero};
    const auto magnitude = static_cast<int32_t>((exponent ? fraction | 1u << (10 - shift) : fraction) << shift);
    return {sign ? -magnitude : magnitude, (exponent ? exponent : 1) - bias};
}

MmaElement decode16(uint16_t bits, int format) {
    if (format == kHalf) return decode_fields(bits >> 15, bits >> 10 & 0x1f, bits & 0x3ff, 15, 0x1f, 0);
    return decode_fields(bits >> 15, bits >> 7 & 0xff, bits & 0x7f, 127, 0xff, 3);
}

MmaElement decode_tf32(uint32_t bits) {  // the 13 low bits of the register are ignored
    return decode_fields(bits >> 31, static_cast<int32_t>(bits >> 23 & 0xff), bits >> 13 & 0x3ff, 127, 0xff, 0);
}

namespace {
double value_of(const MmaElement& element) {
    if (element.special()) return element.significand ? element.significand * HUGE_VAL : std::nan("");
    return element.significand ? std::ldexp(element.significand, element.exponent - 10) : 0.0;
}
}  // namespace

void multiply_accumulate(MmaTile& tile, int, int) {
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            double sum = 0.0;
            for (int k = 0; k < tile.depth; k++) sum += value_of(tile.a[row][k]) * value_of(tile.b[k][column]);
            tile.c[row][column] = static_cast<float>(sum + tile.c[row][column]);
        }
}

}  // namespace simt
