// The kernels for AVX-512 with VNNI. Headers of the library come first: what they define must not
// be compiled for this instruction set.
#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "kernels.h"

#if defined(__x86_64__)
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#define FL_ISA avx512
#include "vector_avx512.h"
#include "kernels.inl"

namespace firstlight {
const Kernels avx512_kernels = avx512::table;
}
#endif
