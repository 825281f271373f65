// Arithmetic of mma.sync. The tensor cores' rule, identified by Khattak and Mikaitis (arXiv 2512.07004) and Xie et al.
// (MMA-Sim, arXiv 2511.10909) for sums of fp16, bf16 and tf32 products in an fp32 accumulator:
//   1. products are exact and not normalised: significand in [0, 4), exponent the sum of the operands' exponents;
//   2. the accumulator is one more term of the sum;
//   3. every term is aligned to the largest exponent and truncated toward zero to F fraction bits;
//   4. the aligned integers are added exactly; the sum is truncated toward zero to fp32.
// Ampere and Ada: F = 24, sums of 8 products (4 for tf32), chained in the order of k. Hopper: F = 25, one sum of all;
// equal bit for bit to an H200 on golden_h200.npz of the tests, infinities and NaNs included.
#include "mma.h"

#include <cmath>
#include <cstring>

#include "state.h"

namespace simt {

namespace {

constexpr int kColumns = 8;
constexpr int kProductFraction = 20;      // fraction bits of a product of two significands
constexpr int kAccumulatorFraction = 23;  // fraction bits of an fp32 significand

using Ints = int32_t __attribute__((vector_size(4 * kColumns)));  // one integer for each column

Ints load(const int32_t* values) {
    Ints loaded;
    std::memcpy(&loaded, values, sizeof loaded);
    return loaded;
}
Ints larger(Ints a, Ints b) { return a > b ? a : b; }
Ints smaller(Ints a, Ints b) { return a < b ? a : b; }

// magnitude >> distance with the sign of `sign` (all ones or zero). The right shift of a magnitude truncates toward zero.
Ints shifted(Ints magnitude, Ints distance, Ints sign) {
    const Ints moved = magnitude >> smaller(distance, Ints{} + 31);
    return (moved ^ sign) - sign;
}

struct Accumulators {
    Ints magnitude, exponent, sign;
};

Accumulators decode(const float* c) {
    Ints bits;
    std::memcpy(&bits, c, sizeof bits);
    const Ints field = (bits >> 23) & 0xff;
    const Ints fraction = bits & 0x7fffff;
    const Ints magnitude = field != 0 ? fraction | (1 << 23) : fraction;
    const Ints exponent = larger(field, Ints{} + 1) - 127;
    return {magnitude, magnitude != 0 ? exponent : Ints{} + MmaElement::kZeroExponent, bits >> 31};
}

// 2^exponent for an exponent that a sum of products can have.
double power_of_two(int32_t exponent) {
    const uint64_t bits = static_cast<uint64_t>(1023 + exponent) << 52;
    double power;
    std::memcpy(&power, &bits, sizeof power);
    return power;
}

// sum * 2^(exponent - fraction) truncated toward zero to fp32, subnormals included.
float truncated(int64_t sum, int32_t exponent, int fraction) {
    if (sum == 0) return 0.0f;
    double value = static_cast<double>(sum) * power_of_two(exponent - fraction);  // exact: the sum has at most 33 bits
    uint64_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    bits &= ~uint64_t{0x1fffffff};  // 52 - 23 low bits
    std::memcpy(&value, &bits, sizeof value);
    if (std::fabs(value) < 0x1p-126) value = std::trunc(value * 0x1p149) * 0x1p-149;
    return static_cast<float>(value);
}

// One sum of the products of k in [first, last) and the accumulators of a row, for all columns at once.
void add_group(MmaTile& tile, int row, int first, int last, int fraction) {
    const Accumulators c = decode(tile.c[row]);
    Ints largest = c.exponent;
    for (int k = first; k < last; k++) largest = larger(largest, tile.a_exponent[row][k] + load(tile.b_exponent[k]));
    Ints products{};  // 16 products below 4 * 2^25 fit in 31 bits; the accumulator is added in 64
    for (int k = first; k < last; k++) {
        const Ints product = tile.a_significand[row][k] * load(tile.b_significand[k]);
        const Ints sign = product >> 31;
        const Ints magnitude = ((product ^ sign) - sign) << (fraction - kProductFraction);
        products += shifted(magnitude, largest - (tile.a_exponent[row][k] + load(tile.b_exponent[k])), sign);
    }
    const Ints start = shifted(c.magnitude << (fraction - kAccumulatorFraction), largest - c.exponent, c.sign);
    for (int column = 0; column < kColumns; column++)
        tile.c[row][column] = truncated(int64_t{products[column]} + start[column], largest[column], fraction);
}

double value_of(int32_t significand, int32_t exponent) {
    if (exponent == MmaElement::kSpecialExponent) return significand ? significand * HUGE_VAL : std::nan("");
    return significand ? significand * power_of_two(exponent - 10) : 0.0;
}

struct Values {
    double a[16][16], b[16][8];
};

void decode(const MmaTile& tile, Values& values) {
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < tile.depth; k++)
            values.a[row][k] = value_of(tile.a_significand[row][k], tile.a_exponent[row][k]);
    for (int k = 0; k < tile.depth; k++)
        for (int column = 0; column < kColumns; column++)
            values.b[k][column] = value_of(tile.b_significand[k][column], tile.b_exponent[k][column]);
}

// The sum in double, rounded once to nearest.
void add_ideal(MmaTile& tile, const Values& values, int row) {
    double sums[kColumns] = {};
    for (int k = 0; k < tile.depth; k++)
        for (int column = 0; column < kColumns; column++) sums[column] += values.a[row][k] * values.b[k][column];
    for (int column = 0; column < kColumns; column++)
        tile.c[row][column] = static_cast<float>(sums[column] + tile.c[row][column]);
}

bool special(const MmaTile& tile, const float (&c)[16][8], int row, int column) {
    if (!std::isfinite(c[row][column])) return true;
    for (int k = 0; k < tile.depth; k++)
        if (tile.a_exponent[row][k] == MmaElement::kSpecialExponent ||
            tile.b_exponent[k][column] == MmaElement::kSpecialExponent)
            return true;
    return false;
}

bool any_special(const MmaTile& tile, const float (&c)[16][8]) {
    bool found = tile.any_special;
    for (const auto& row : c)
        for (float value : row) found |= !std::isfinite(value);
    return found;
}

// Infinities and NaNs follow IEEE 754 in every model; a NaN is the hardware's 0x7fffffff.
void redo_special(MmaTile& tile, const float (&c)[16][8]) {
    static MmaTile ideal;
    static Values values;
    ideal = tile;
    std::memcpy(ideal.c, c, sizeof ideal.c);
    decode(ideal, values);
    for (int row = 0; row < 16; row++) {
        add_ideal(ideal, values, row);
        for (int column = 0; column < kColumns; column++) {
            if (!special(tile, c, row, column)) continue;
            const uint32_t hardware_nan = 0x7fffffff;
            tile.c[row][column] = ideal.c[row][column];
            if (std::isnan(tile.c[row][column])) std::memcpy(&tile.c[row][column], &hardware_nan, sizeof hardware_nan);
        }
    }
}

}  // namespace

void multiply_accumulate(MmaTile& tile, int model) {
    float accumulator[16][8];
    std::memcpy(accumulator, tile.c, sizeof accumulator);
    if (model == kIdeal) {
        static Values values;
        decode(tile, values);
        for (int row = 0; row < 16; row++) add_ideal(tile, values, row);
    } else {
        const int fraction = model == kAmpere ? 24 : 25;
        const int group = model == kAmpere ? tile.depth / 2 : tile.depth;
        for (int row = 0; row < 16; row++)
            for (int first = 0; first < tile.depth; first += group) add_group(tile, row, first, first + group, fraction);
    }
    if (any_special(tile, accumulator)) redo_special(tile, accumulator);
}

}  // namespace simt
