// Dropout by a counter-based generator: the draw of a pair depends on (seed, offset, batch, head, row, column) alone,
// so forward and backward, any tiling and the NumPy mirror (kernels/dropout.py) see the same mask.
//
// Generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", SC 2011).
// Key = 64-bit seed. Counter = (column / 4, row, batch * nheads + head, offset); word column % 4 belongs to the pair.
#pragma once

constexpr unsigned int PHILOX_MULTIPLIER_0 = 0xD2511F53u;
constexpr unsigned int PHILOX_MULTIPLIER_1 = 0xCD9E8D57u;
constexpr unsigned int PHILOX_WEYL_0 = 0x9E3779B9u;  // golden ratio
constexpr unsigned int PHILOX_WEYL_1 = 0xBB67AE85u;  // sqrt(3) - 1
constexpr int PHILOX_ROUNDS = 10;

struct PhiloxWords {
    unsigned int word[4];
};

__device__ __forceinline__ PhiloxWords philox(PhiloxWords counter, unsigned int key_0, unsigned int key_1)
{
    unsigned int(&x)[4] = counter.word;
    for (int round = 0; round < PHILOX_ROUNDS; ++round) {
        const unsigned long long product_0 = static_cast<unsigned long long>(PHILOX_MULTIPLIER_0) * x[0];
        const unsigned long long product_1 = static_cast<unsigned long long>(PHILOX_MULTIPLIER_1) * x[2];
        x[0] = static_cast<unsigned int>(product_1 >> 32) ^ x[1] ^ key_0;
        x[2] = static_cast<unsigned int>(product_0 >> 32) ^ x[3] ^ key_1;
        x[1] = static_cast<unsigned int>(product_1);
        x[3] = static_cast<unsigned int>(product_0);
        key_0 += PHILOX_WEYL_0;
        key_1 += PHILOX_WEYL_1;
    }
    return counter;
}

__device__ __forceinline__ unsigned int dropout_draw(unsigned int seed_low, unsigned int seed_high, unsigned int offset,
                                                     unsigned int batch_head, unsigned int row, unsigned int col)
{
    const PhiloxWords words = philox({{col / 4, row, batch_head, offset}}, seed_low, seed_high);
    switch (col % 4) {  // a switch, not an indexed load: the words stay in registers
        case 0: return words.word[0];
        case 1: return words.word[1];
        case 2: return words.word[2];
        default: return words.word[3];
    }
}
