// Where a shared object lies in memory.
#include <link.h>

#include "state.h"

namespace simt {

Image kernel_image;

namespace {

struct ImageQuery {
    uintptr_t address;
    Image image;
};
int find_image(dl_phdr_info* info, size_t, void* data) {
    auto* query = static_cast<ImageQuery*>(data);
    uintptr_t first = ~uintptr_t{0}, last = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto& header = info->dlpi_phdr[i];
        if (header.p_type != PT_LOAD) continue;
        const uintptr_t start = info->dlpi_addr + header.p_vaddr;
        first = start < first ? start : first;
        last = start + header.p_memsz > last ? start + header.p_memsz : last;
    }
    if (query->address < first || query->address >= last) return 0;
    query->image = {info->dlpi_addr, first, last};
    return 1;
}
}  // namespace

Image image_of(uintptr_t address) {
    ImageQuery query{address, {}};
    dl_iterate_phdr(find_image, &query);
    return query.image;
}

}  // namespace simt

// Load address of the shared object that holds a function.
SIMT_API uintptr_t simt_image_base(const void* function) {
    return simt::image_of(reinterpret_cast<uintptr_t>(function)).base;
}
