// Block-wide and named barriers, memory fences.
#pragma once

static inline void __syncthreads(simt::Where where = simt::here()) { simt_barrier(0, 0, simt::kNone, 0, where); }
static inline int __syncthreads_or(int predicate, simt::Where where = simt::here()) {
    return simt_barrier(0, 0, simt::kOr, predicate != 0, where);
}
static inline int __syncthreads_and(int predicate, simt::Where where = simt::here()) {
    return simt_barrier(0, 0, simt::kAnd, predicate != 0, where);
}
static inline int __syncthreads_count(int predicate, simt::Where where = simt::here()) {
    return simt_barrier(0, 0, simt::kCount, predicate != 0, where);
}
static inline void __threadfence() { simt_fence(); }
static inline void __threadfence_block() {}
static inline void __threadfence_system() { simt_fence(); }
