// ldmatrix and the operand layouts of mma.sync (PTX ISA, "Matrix fragments for mma.m16n8k16" and "ldmatrix").
#include <cstring>

#include "mma.h"
#include "state.h"

namespace simt {

namespace {

// Element (row, column) of a fragment: lane = 4 * (row % 8) + column / 2 holds a pair of adjacent columns.
void unpack_pair(unsigned packed, int format, MmaElement* first) {
    first[0] = decode16(static_cast<uint16_t>(packed), format);
    first[1] = decode16(static_cast<uint16_t>(packed >> 16), format);
}

void gather_16_bit(const MmaOperands& operands, int lane, int format, MmaTile& tile) {
    const int group = lane / 4, column = lane % 4 * 2;
    for (int i = 0; i < 4; i++) unpack_pair(operands.a[i], format, &tile.a[group + i % 2 * 8][column + i / 2 * 8]);
    for (int i = 0; i < 2; i++) {
        MmaElement pair[2];
        unpack_pair(operands.b[i], format, pair);
        tile.b[column + i * 8][group] = pair[0];
        tile.b[column + 1 + i * 8][group] = pair[1];
    }
}

void gather_tf32(const MmaOperands& operands, int lane, MmaTile& tile) {
    const int group = lane / 4, column = lane % 4;
    for (int i = 0; i < 4; i++) tile.a[group + i % 2 * 8][column + i / 2 * 4] = decode_tf32(operands.a[i]);
    for (int i = 0; i < 2; i++) tile.b[column + i * 4][group] = decode_tf32(operands.b[i]);
}

}  // namespace

}  // namespace simt

SIMT_API void simt_mma(const void* const* in, void* const* out, int format) {
    using namespace simt;
    static MmaTile tile;
    tile.depth = format == kTf32 ? 8 : 16;
    for (int lane = 0; lane < 32; lane++) {
        const auto& operands = *static_cast<const MmaOperands*>(in[lane]);
        if (format == kTf32)
            gather_tf32(operands, lane, tile);
        else
            gather_16_bit(operands, lane, format, tile);
        const int row = lane / 4, column = lane % 4 * 2;
        std::memcpy(&tile.c[row][column], &operands.c[0], 8);
        std::memcpy(&tile.c[row + 8][column], &operands.c[2], 8);
    }
    multiply_accumulate(tile, format, launch->mma);
    for (int lane = 0; lane < 32; lane++) {
        auto* c = static_cast<float*>(out[lane]);
        const int row = lane / 4, column = lane % 4 * 2;
        std::memcpy(c, &tile.c[row][column], 8);
        std::memcpy(c + 2, &tile.c[row + 8][column], 8);
    }
}

SIMT_API void simt_check_shared_row(unsigned shared_address, simt::Where where) {
    using namespace simt;
    if (shared_address % 16) {
        report(kMisaligned, site_of(where), "ldmatrix row address %u is not a multiple of 16", shared_address);
        abandon_block();
    }
    if (shared_address + 16 > shared_bytes() || shared_address + 16 < 16) {
        FaultRecord* fault = report(kOutOfBounds, site_of(where), "ldmatrix row at byte %u of %zu bytes of shared memory",
                                    shared_address, shared_bytes());
        fault->buffer = -1;
        fault->offset = shared_address;
        abandon_block();
    }
    if (launch->checked) shadow_access(simt_shared + shared_address, 16, kRead, site_of(where));
}

// Matrix j takes its 8 row addresses from lanes 8j..8j+7; lane l receives row l/4, columns 2(l%4) and 2(l%4)+1 (or the
// same of the transposed matrix).
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
