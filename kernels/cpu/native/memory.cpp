#include "memory.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace firstlight {

namespace {

constexpr std::size_t kLine = 64, kHugePage = std::size_t{2} << 20, kRegion = std::size_t{32} << 20;

std::size_t rounded(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

void* allocated(std::size_t alignment, std::size_t bytes) {
    void* memory = std::aligned_alloc(alignment, bytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
}

Piece new_region(std::size_t bytes) {
    Piece region(static_cast<std::uint8_t*>(allocated(kHugePage, bytes)), AlignedFree());
#if defined(MADV_HUGEPAGE)
    madvise(region.get(), bytes, MADV_HUGEPAGE);  // a wish: small pages do as well
#endif
    return region;
}

}  // namespace

void AlignedFree::operator()(void* memory) const { std::free(memory); }

void* aligned_zeros(std::size_t bytes) {
    std::size_t size = std::max(kLine, rounded(bytes, kLine));
    void* memory = allocated(kLine, size);
    std::memset(memory, 0, size);
    return memory;
}

Piece lasting_zeros(std::size_t bytes) {
    static std::mutex mutex;
    static std::weak_ptr<std::uint8_t[]> open;  // the region that the next piece is cut from
    static std::size_t used, size;
    std::lock_guard lock(mutex);
    bytes = rounded(bytes, kLine);
    Piece region = open.lock();
    if (region == nullptr || size - used < bytes) {
        std::size_t needed = std::max(kRegion, rounded(bytes, kHugePage));
        open = region = new_region(needed);
        size = needed;
        used = 0;
    }
    Piece piece(region, region.get() + used);
    used += bytes;
    std::memset(piece.get(), 0, bytes);
    return piece;
}

}  // namespace firstlight
