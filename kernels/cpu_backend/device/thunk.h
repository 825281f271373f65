// Entry points that the loader looks up. It appends SIMT_ENTRY(name) for each kernel to the generated translation unit.
#pragma once

namespace simt {

template <class... Parameters>
struct Entry {
    template <void (*kernel)(Parameters...)>
    struct Of {
        SIMT_UNINSTRUMENTED static void call(void** arguments) { spread(arguments, std::index_sequence_for<Parameters...>{}); }
        template <size_t... I>
        SIMT_UNINSTRUMENTED static void spread(void** arguments, std::index_sequence<I...>) {
            (void)arguments;  // a kernel may take none
            kernel(*static_cast<std::remove_const_t<std::remove_reference_t<Parameters>>*>(arguments[I])...);
        }
    };
    static constexpr size_t count = sizeof...(Parameters);
    static constexpr unsigned sizes[sizeof...(Parameters) + 1] = {sizeof(Parameters)..., 0};
};
template <class... Parameters>
Entry<Parameters...> entry_of(void (*)(Parameters...));

}  // namespace simt

#define SIMT_ENTRY(NAME)                                                                                  \
    SIMT_API SIMT_UNINSTRUMENTED void simt_entry_##NAME(void** arguments) {                               \
        decltype(simt::entry_of(NAME))::template Of<NAME>::call(arguments);                               \
    }                                                                                                     \
    SIMT_API const unsigned* simt_sizes_##NAME(unsigned* count) {                                         \
        *count = static_cast<unsigned>(decltype(simt::entry_of(NAME))::count);                            \
        return decltype(simt::entry_of(NAME))::sizes;                                                     \
    }
