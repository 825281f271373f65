// The block's dynamic shared memory: a window whose end touches an inaccessible page, filled with NaN patterns for each
// block. Also says which buffer a stray address was meant for.
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "state.h"

extern "C" {
unsigned char* simt_shared;
}

namespace simt {

namespace {
constexpr size_t kPage = 4096;
constexpr size_t kWindow = (kSharedLimit + kPage - 1) / kPage * kPage;
constexpr size_t kMargin = 64 * 1024;  // inaccessible on both sides: a stray index of this size still faults
unsigned char* window;
size_t bytes_in_use;
}  // namespace

void set_up_shared(size_t bytes) {
    if (!window) {
        void* map = mmap(nullptr, kWindow + 2 * kMargin, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                         -1, 0);
        if (map == MAP_FAILED) {
            std::perror("cpu_backend: mmap of the shared window");
            std::abort();
        }
        window = static_cast<unsigned char*>(map) + kMargin;
    }
    const size_t pages = (bytes + kPage - 1) / kPage * kPage;
    mprotect(window, kWindow, PROT_NONE);
    if (pages) mprotect(window, pages, PROT_READ | PROT_WRITE);
    // 16-byte alignment costs up to 15 bytes of slack before the guard page. A 1024-byte swizzle atom would cost more
    // slack than it is worth: addresses seen by ldmatrix and cp.async are offsets into the window, aligned by design.
    simt_shared = window + (pages - (bytes + 15) / 16 * 16);
    bytes_in_use = bytes;
}

void poison_shared() { std::memset(simt_shared, 0xff, (bytes_in_use + 15) / 16 * 16); }

size_t shared_bytes() { return bytes_in_use; }

// Names the place of an address outside of every known range: the nearest of shared memory and the buffers.
void describe_address(uintptr_t address, int* buffer, long* offset, char* text, size_t room) {
    const uintptr_t start = reinterpret_cast<uintptr_t>(window) - kMargin;
    if (address - start < kWindow + 2 * kMargin) {
        *buffer = -1;
        *offset = static_cast<long>(address - reinterpret_cast<uintptr_t>(simt_shared));
        std::snprintf(text, room, "byte %ld of %zu bytes of shared memory", *offset, bytes_in_use);
        return;
    }
    *buffer = -2;
    *offset = 0;
    long nearest = 1L << 24;  // farther than this from every buffer means a wild pointer
    for (int i = 0; i < launch->buffer_count; i++) {
        const BufferRecord& record = launch->buffers[i];
        const long distance = static_cast<long>(address - reinterpret_cast<uintptr_t>(record.base));
        const long outside = distance < 0 ? -distance : distance - static_cast<long>(record.bytes);
        if (outside >= nearest) continue;
        nearest = outside;
        *buffer = i;
        *offset = distance;
    }
    if (*buffer >= 0)
        std::snprintf(text, room, "byte %ld of a buffer of %zu bytes", *offset, launch->buffers[*buffer].bytes);
    else
        std::snprintf(text, room, "address %#zx, far from every buffer", static_cast<size_t>(address));
}

}  // namespace simt
