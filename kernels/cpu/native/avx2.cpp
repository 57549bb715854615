// The kernels for AVX2, FMA and F16C. Headers of the library come first: what they define must not
// be compiled for this instruction set.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "kernels.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c")
#define FL_ISA avx2
#include "vector_avx2.h"
#include "kernels.inl"

namespace firstlight {
const Kernels avx2_kernels = avx2::table;
}
#endif
