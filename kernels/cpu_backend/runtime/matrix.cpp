// ldmatrix and the operand layouts of mma.sync (PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix").
#include <cstring>

#include "mma.h"
#include "state.h"

namespace simt {

namespace {

// 16-bit operands: lane l holds pairs of adjacent k of row (a) or column (b) l / 4, starting at k = 2 * (l % 4).
template <MmaElement (*decode)(uint32_t)>
void gather_16_bit(const MmaOperands& operands, int lane, MmaTile& tile) {
    const int group = lane / 4, k = lane % 4 * 2;
    for (int i = 0; i < 4; i++) {
        tile.set_a(group + i % 2 * 8, k + i / 2 * 8, decode(operands.a[i] & 0xffff));
        tile.set_a(group + i % 2 * 8, k + i / 2 * 8 + 1, decode(operands.a[i] >> 16));
    }
    for (int i = 0; i < 2; i++) {
        tile.set_b(k + i * 8, group, decode(operands.b[i] & 0xffff));
        tile.set_b(k + i * 8 + 1, group, decode(operands.b[i] >> 16));
    }
}

void gather_tf32(const MmaOperands& operands, int lane, MmaTile& tile) {
    const int group = lane / 4, k = lane % 4;
    for (int i = 0; i < 4; i++) tile.set_a(group + i % 2 * 8, k + i / 2 * 4, decode_tf32(operands.a[i]));
    for (int i = 0; i < 2; i++) tile.set_b(k + i * 4, group, decode_tf32(operands.b[i]));
}

void gather(const MmaOperands& operands, int lane, int format, MmaTile& tile) {
    if (format == kHalf)
        gather_16_bit<decode_half>(operands, lane, tile);
    else if (format == kBfloat16)
        gather_16_bit<decode_bfloat16>(operands, lane, tile);
    else
        gather_tf32(operands, lane, tile);
}

}  // namespace

}  // namespace simt

SIMT_API void simt_mma(const void* const* in, void* const* out, int format) {
    using namespace simt;
    static MmaTile tile;
    tile.depth = format == kTf32 ? 8 : 16;
    tile.any_special = false;
    // Accumulators: lane l holds columns 2 * (l % 4) and the next, of rows l / 4 and l / 4 + 8.
    for (int lane = 0; lane < 32; lane++) {
        const auto& operands = *static_cast<const MmaOperands*>(in[lane]);
        gather(operands, lane, format, tile);
        std::memcpy(&tile.c[lane / 4][lane % 4 * 2], &operands.c[0], 8);
        std::memcpy(&tile.c[lane / 4 + 8][lane % 4 * 2], &operands.c[2], 8);
    }
    multiply_accumulate(tile, launch->mma);
    for (int lane = 0; lane < 32; lane++) {
        auto* c = static_cast<float*>(out[lane]);
        std::memcpy(c, &tile.c[lane / 4][lane % 4 * 2], 8);
        std::memcpy(c + 2, &tile.c[lane / 4 + 8][lane % 4 * 2], 8);
    }
}

SIMT_API void simt_check_shared_row(unsigned shared_address, simt::Where where) {
    using namespace simt;
    if (shared_address % 16) {
        report(kMisaligned, site_of(where), "ldmatrix row address %u is not a multiple of 16", shared_address);
        abandon_block();
    }
    if (size_t{shared_address} + 16 > shared_bytes()) {
        FaultRecord* fault = report(kOutOfBounds, site_of(where), "ldmatrix row at byte %u of %zu bytes of shared memory",
                                    shared_address, shared_bytes());
        fault->buffer = -1;
        fault->offset = shared_address;
        abandon_block();
    }
    if (launch->checks == kMemory) shadow_access(simt_shared + shared_address, 16, kRead, site_of(where));
}

// Matrix j takes its 8 row addresses from lanes 8j..8j+7; lane l receives row l / 4, columns 2 * (l % 4) and the next, of
// the matrix or of its transpose.
SIMT_API void simt_ldmatrix(const void* const* in, void* const* out, int matrices, int transposed) {
    for (int j = 0; j < matrices; j++) {
        uint16_t matrix[8][8];
        for (int row = 0; row < 8; row++)
            std::memcpy(matrix[row], simt_shared + *static_cast<const unsigned*>(in[8 * j + row]), 16);
        for (int lane = 0; lane < 32; lane++) {
            const int row = lane / 4, column = lane % 4 * 2;
            const unsigned low = transposed ? matrix[column][row] : matrix[row][column];
            const unsigned high = transposed ? matrix[column + 1][row] : matrix[row][column + 1];
            static_cast<unsigned*>(out[lane])[j] = low | high << 16;
        }
    }
}
