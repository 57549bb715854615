// Sixteen lanes on a machine with AVX2, FMA and F16C: two registers each.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define FL_INLINE static inline __attribute__((always_inline))

namespace firstlight::FL_ISA {

constexpr const char* kName = "avx2";
constexpr int kQ4Rows = 4, kOpenRows = 6, kQ8Rows = 2, kFloatRows = 6;  // rows a tile that the registers hold

struct Floats {
    __m256 a, b;
};

FL_INLINE Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
FL_INLINE Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
FL_INLINE void store(float* p, Floats x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
FL_INLINE Floats load_half(const void* p) {
    auto* at = static_cast<const __m128i*>(p);
    return {_mm256_cvtph_ps(_mm_loadu_si128(at)), _mm256_cvtph_ps(_mm_loadu_si128(at + 1))};
}
FL_INLINE void store_half(void* p, Floats x) {
    auto* at = static_cast<__m128i*>(p);
    _mm_storeu_si128(at, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(at + 1, _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
FL_INLINE __m256 widened(__m128i x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16));
}
FL_INLINE Floats load_bf16(const void* p) {
    auto* at = static_cast<const __m128i*>(p);
    return {widened(_mm_loadu_si128(at)), widened(_mm_loadu_si128(at + 1))};
}
FL_INLINE Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
FL_INLINE Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
FL_INLINE Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
FL_INLINE Floats div(Floats x, Floats y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
FL_INLINE Floats fma(Floats x, Floats y, Floats z) {
    return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
FL_INLINE Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
FL_INLINE Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
FL_INLINE Floats absolute(Floats x) {
    __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
FL_INLINE Floats rounded(Floats x) {
    constexpr int how = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    return {_mm256_round_ps(x.a, how), _mm256_round_ps(x.b, how)};
}
FL_INLINE __m256 power_of_2(__m256 n) {
    __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
// x · 2ⁿ for integral n in −126…127.
FL_INLINE Floats scaled(Floats x, Floats n) {
    return {_mm256_mul_ps(x.a, power_of_2(n.a)), _mm256_mul_ps(x.b, power_of_2(n.b))};
}
// Lanes from `count` on become `other`.
FL_INLINE Floats keep_first(Floats x, int count, Floats other) {
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), limit = _mm256_set1_epi32(count);
    __m256i low = _mm256_cmpgt_epi32(limit, lane);
    __m256i high = _mm256_cmpgt_epi32(limit, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
    return {_mm256_blendv_ps(other.a, x.a, _mm256_castsi256_ps(low)),
            _mm256_blendv_ps(other.b, x.b, _mm256_castsi256_ps(high))};
}
// Lanes are joined in one fixed order: the two halves, then quarters, eighths, sixteenths.
FL_INLINE float total(Floats x) {
    __m256 s = _mm256_add_ps(x.a, x.b);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
FL_INLINE float most(Floats x) {
    __m256 s = _mm256_max_ps(x.a, x.b);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
// Sixteen rounded values as signed bytes; returns their sum.
FL_INLINE int store_bytes(std::int8_t* p, Floats x) {
    __m256i a = _mm256_cvtps_epi32(x.a), b = _mm256_cvtps_epi32(x.b);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    __m128i bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    __m256i s = _mm256_add_epi32(a, b);
    __m128i q = _mm_add_epi32(_mm256_castsi256_si128(s), _mm256_extracti128_si256(s, 1));
    q = _mm_add_epi32(q, _mm_shuffle_epi32(q, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(q, _mm_shuffle_epi32(q, 0xb1)));
}

struct Bytes {  // sixteen lanes of four bytes
    __m256i a, b;
};

FL_INLINE Bytes load_bytes(const std::uint8_t* p) {
    auto* at = reinterpret_cast<const __m256i*>(p);
    return {_mm256_load_si256(at), _mm256_load_si256(at + 1)};
}
FL_INLINE void store_codes(std::uint8_t* p, Bytes x) {
    auto* at = reinterpret_cast<__m256i*>(p);
    _mm256_store_si256(at, x.a);
    _mm256_store_si256(at + 1, x.b);
}
FL_INLINE Bytes low_halves(Bytes x) {
    __m256i mask = _mm256_set1_epi8(0x0f);
    return {_mm256_and_si256(x.a, mask), _mm256_and_si256(x.b, mask)};
}
FL_INLINE Bytes high_halves(Bytes x) {
    return low_halves({_mm256_srli_epi16(x.a, 4), _mm256_srli_epi16(x.b, 4)});
}
FL_INLINE int four(const std::int8_t* p) {
    int x;
    std::memcpy(&x, p, 4);
    return x;
}

// Sums of code · activation over a group, exact in integers. A pair of products of a code below 16
// is at most 15 · 127 · 2 = 3,810, so that the eight pairs of a group fit 16 bits.
struct Q4Sum {
    __m256i a, b;
};
FL_INLINE Q4Sum q4_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
FL_INLINE void q4_step(Q4Sum& sum, Bytes codes, int x) {
    __m256i four = _mm256_set1_epi32(x);
    sum.a = _mm256_add_epi16(sum.a, _mm256_maddubs_epi16(codes.a, four));
    sum.b = _mm256_add_epi16(sum.b, _mm256_maddubs_epi16(codes.b, four));
    // Keeps GCC from adding up later in a tree, which takes more registers than there are.
    __asm__("" : "+x"(sum.a), "+x"(sum.b));
}
FL_INLINE Floats q4_total(Q4Sum sum) {
    __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_cvtepi32_ps(_mm256_madd_epi16(sum.a, ones)),
            _mm256_cvtepi32_ps(_mm256_madd_epi16(sum.b, ones))};
}

// A code below 256 is two below 16: 16 · high + low.
struct Q8Sum {
    Q4Sum low, high;
};
FL_INLINE Q8Sum q8_zero() { return {q4_zero(), q4_zero()}; }
FL_INLINE __m256 q8_joined(__m256i low, __m256i high, int offset) {
    __m256i ones = _mm256_set1_epi16(1);
    __m256i x = _mm256_slli_epi32(_mm256_madd_epi16(high, ones), 4);
    x = _mm256_add_epi32(x, _mm256_madd_epi16(low, ones));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(x, _mm256_set1_epi32(offset)));
}
FL_INLINE Floats q8_total(Q8Sum sum, int offset) {
    return {q8_joined(sum.low.a, sum.high.a, offset), q8_joined(sum.low.b, sum.high.b, offset)};
}
struct Q8Codes {
    Bytes low, high;
};
FL_INLINE Q8Codes q8_codes(const std::uint8_t* p) {
    Bytes x = load_bytes(p);
    return {low_halves(x), high_halves(x)};
}
FL_INLINE void q8_step(Q8Sum& sum, const Q8Codes& codes, int x) {
    q4_step(sum.low, codes.low, x);
    q4_step(sum.high, codes.high, x);
}

}  // namespace firstlight::FL_ISA
