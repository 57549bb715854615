// Memory that kernels read with aligned vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace firstlight {

struct AlignedFree {
    void operator()(void* memory) const;
};
template <class T>
using Aligned = std::unique_ptr<T[], AlignedFree>;

// 64-byte aligned and zeroed. Throws std::bad_alloc.
void* aligned_zeros(std::size_t bytes);
template <class T>
Aligned<T> aligned(std::size_t count) {
    return Aligned<T>(static_cast<T*>(aligned_zeros(count * sizeof(T))));
}

// The same for what stays as long as a model: one piece after the other of large regions that lie
// in huge pages where the system has them, since a step reads all weights and a page of 4 KiB is
// used up at once. A region is given back with the last of its pieces. Throws std::bad_alloc.
using Piece = std::shared_ptr<std::uint8_t[]>;
Piece lasting_zeros(std::size_t bytes);

}  // namespace firstlight
