// Warp-level instructions that CUDA C++ has no spelling for: the only file with inline assembly.
//
// The first half is for NVRTC and nvcc (sm_80 and later); the second, under SIMT_CPU, has the same functions on the CPU
// backend. Names and argument orders are the same in both. A "shared address" is the 32-bit address in the shared window
// that the instructions take; on the CPU it is the byte offset from the start of the block's dynamic shared memory.
//
//   DYN_SMEM(name)                        declares `name`, the block's dynamic shared memory, 1024-byte aligned on a GPU
//   shared_address(pointer)               generic pointer into shared memory -> shared address
//   ldmatrix_x1/x2/x4[_trans](r, row)     8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8
//   mma_m16n8k16<T>(d, a, b)              d += a * b, T = __half or __nv_bfloat16, fp32 accumulator
//   mma_m16n8k8_tf32(d, a, b)             d += a * b, operands are fp32 bit patterns of which tf32 keeps the 19 high bits
//   cp_async<4|8|16>(shared, global, ok)  asynchronous copy; ok == false writes zeros and reads nothing
//   cp_async_commit(), cp_async_wait<N>() close a group; wait until at most N groups are unfinished
//   exp2_approx(x)                        ex2.approx.ftz.f32
//   named_barrier_sync/arrive(id, n)      barrier `id` (1..15) for n threads, a multiple of 32
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifndef SIMT_CPU

#ifdef __CUDACC_RTC__  // NVRTC ships neither <cmath> nor <cstdint>
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
#endif

#define DYN_SMEM(name) extern __shared__ __align__(1024) unsigned char name[]

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#define PTX_LDMATRIX(SUFFIX, MODIFIER)                                                                                 \
    __device__ __forceinline__ void ldmatrix_x1##SUFFIX(unsigned (&r)[1], unsigned row) {                              \
        asm volatile("ldmatrix.sync.aligned.m8n8.x1" MODIFIER ".shared.b16 {%0}, [%1];"                                \
                     : "=r"(r[0]) : "r"(row) : "memory");                                                              \
    }                                                                                                                  \
    __device__ __forceinline__ void ldmatrix_x2##SUFFIX(unsigned (&r)[2], unsigned row) {                              \
        asm volatile("ldmatrix.sync.aligned.m8n8.x2" MODIFIER ".shared.b16 {%0, %1}, [%2];"                            \
                     : "=r"(r[0]), "=r"(r[1]) : "r"(row) : "memory");                                                  \
    }                                                                                                                  \
    __device__ __forceinline__ void ldmatrix_x4##SUFFIX(unsigned (&r)[4], unsigned row) {                              \
        asm volatile("ldmatrix.sync.aligned.m8n8.x4" MODIFIER ".shared.b16 {%0, %1, %2, %3}, [%4];"                    \
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row) : "memory");                          \
    }
PTX_LDMATRIX(, "")
PTX_LDMATRIX(_trans, ".trans")
#undef PTX_LDMATRIX

template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]);

#define PTX_MMA(INSTRUCTION)                                                                                           \
    asm volatile(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                        \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
template <>
__device__ __forceinline__ void mma_m16n8k16<__half>(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    PTX_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
}
template <>
__device__ __forceinline__ void mma_m16n8k16<__nv_bfloat16>(float (&d)[4], const unsigned (&a)[4],
                                                            const unsigned (&b)[2]) {
    PTX_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
}
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    PTX_MMA("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
}
#undef PTX_MMA

// 16-byte copies bypass L1 (.cg), the smaller ones must go through it (.ca).
template <int Bytes>
__device__ __forceinline__ void cp_async(unsigned shared, const void* global, bool ok = true) {
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    const int source_bytes = ok ? Bytes : 0;
    if constexpr (Bytes == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(source_bytes)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(Bytes),
                     "r"(source_bytes)
                     : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int GroupsLeft>
__device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(GroupsLeft) : "memory");
}

__device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ void named_barrier_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void named_barrier_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

#else  // SIMT_CPU

#define DYN_SMEM(name) unsigned char* const name = simt_shared

inline unsigned shared_address(const void* pointer) {
    return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - simt_shared);
}

namespace simt {
template <int Matrices, bool Transposed>
void execute_ldmatrix(unsigned, const void* const* in, void* const* out) {
    simt_ldmatrix(in, out, Matrices, Transposed);
}
template <int Matrices, bool Transposed>
inline constexpr WarpOp ldmatrix_op{"ldmatrix", execute_ldmatrix<Matrices, Transposed>, true, false};

// Only the lanes that give row addresses read memory; the others' addresses are ignored, as on the GPU.
template <int Matrices, bool Transposed>
inline void ldmatrix(unsigned (&r)[Matrices], unsigned row, Where where) {
    if (simt_lane < 8 * Matrices) simt_check_shared_row(row, where);
    simt_warp(~0u, &ldmatrix_op<Matrices, Transposed>, &row, r, where);
}

template <int Format>
void execute_mma(unsigned, const void* const* in, void* const* out) {
    simt_mma(in, out, Format);
}
template <int Format>
inline constexpr WarpOp mma_op{"mma", execute_mma<Format>, true, false};
template <int Format>
inline void mma(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], Where where) {
    const MmaOperands operands{{d[0], d[1], d[2], d[3]}, {a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
    simt_warp(~0u, &mma_op<Format>, &operands, d, where);
}
template <class T>
inline constexpr int mma_format = -1;
template <>
inline constexpr int mma_format<__half> = kHalf;
template <>
inline constexpr int mma_format<__nv_bfloat16> = kBfloat16;
}  // namespace simt

#define PTX_LDMATRIX(SUFFIX, COUNT, TRANSPOSED)                                                                        \
    inline void ldmatrix_x##COUNT##SUFFIX(unsigned (&r)[COUNT], unsigned row, simt::Where where = simt::here()) {      \
        simt::ldmatrix<COUNT, TRANSPOSED>(r, row, where);                                                              \
    }
PTX_LDMATRIX(, 1, false)
PTX_LDMATRIX(, 2, false)
PTX_LDMATRIX(, 4, false)
PTX_LDMATRIX(_trans, 1, true)
PTX_LDMATRIX(_trans, 2, true)
PTX_LDMATRIX(_trans, 4, true)
#undef PTX_LDMATRIX

template <class T>
inline void mma_m16n8k16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                         simt::Where where = simt::here()) {
    static_assert(simt::mma_format<T> >= 0, "mma.m16n8k16 takes __half or __nv_bfloat16");
    simt::mma<simt::mma_format<T>>(d, a, b, where);
}
inline void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2],
                             simt::Where where = simt::here()) {
    simt::mma<simt::kTf32>(d, a, b, where);
}

template <int Bytes>
inline void cp_async(unsigned shared, const void* global, bool ok = true, simt::Where where = simt::here()) {
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "cp.async copies 4, 8 or 16 bytes");
    simt_copy_async(shared, global, Bytes, ok ? Bytes : 0, where);
}
inline void cp_async_commit() { simt_copy_commit(); }
template <int GroupsLeft>
inline void cp_async_wait() {
    simt_copy_wait(GroupsLeft);
}

inline float exp2_approx(float x) { return simt_exp2_approx(x); }

inline void named_barrier_sync(int id, int threads, simt::Where where = simt::here()) {
    simt_barrier(id, threads, simt::kNone, 0, where);
}
inline void named_barrier_arrive(int id, int threads, simt::Where where = simt::here()) {
    simt_barrier_arrive(id, threads, where);
}

#endif  // SIMT_CPU
