// Sixteen lanes on a machine with AVX-512 (F, BW, VL) and VNNI: one register each.
//
// Every operation does to a lane what the AVX2 one does, in the same order, so that both give the
// same bits; what differs is only that integer sums are taken four products at a time.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#define FL_INLINE static inline __attribute__((always_inline))

namespace firstlight::FL_ISA {

constexpr const char* kName = "avx512-vnni";
constexpr int kQ4Rows = 8, kOpenRows = 8, kQ8Rows = 8, kFloatRows = 12;

struct Floats {
    __m512 a;
};

FL_INLINE Floats splat(float x) { return {_mm512_set1_ps(x)}; }
FL_INLINE Floats load(const float* p) { return {_mm512_loadu_ps(p)}; }
FL_INLINE void store(float* p, Floats x) { _mm512_storeu_ps(p, x.a); }
FL_INLINE Floats load_half(const void* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(static_cast<const __m256i*>(p)))};
}
FL_INLINE void store_half(void* p, Floats x) {
    _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
}
FL_INLINE Floats load_bf16(const void* p) {
    __m256i x = _mm256_loadu_si256(static_cast<const __m256i*>(p));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))};
}
FL_INLINE Floats add(Floats x, Floats y) { return {_mm512_add_ps(x.a, y.a)}; }
FL_INLINE Floats sub(Floats x, Floats y) { return {_mm512_sub_ps(x.a, y.a)}; }
FL_INLINE Floats mul(Floats x, Floats y) { return {_mm512_mul_ps(x.a, y.a)}; }
FL_INLINE Floats div(Floats x, Floats y) { return {_mm512_div_ps(x.a, y.a)}; }
FL_INLINE Floats fma(Floats x, Floats y, Floats z) { return {_mm512_fmadd_ps(x.a, y.a, z.a)}; }
FL_INLINE Floats max(Floats x, Floats y) { return {_mm512_max_ps(x.a, y.a)}; }
FL_INLINE Floats min(Floats x, Floats y) { return {_mm512_min_ps(x.a, y.a)}; }
FL_INLINE Floats absolute(Floats x) { return {_mm512_abs_ps(x.a)}; }
FL_INLINE Floats rounded(Floats x) {
    return {_mm512_roundscale_ps(x.a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
FL_INLINE Floats scaled(Floats x, Floats n) {
    __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(n.a), _mm512_set1_epi32(127));
    return {_mm512_mul_ps(x.a, _mm512_castsi512_ps(_mm512_slli_epi32(bits, 23)))};
}
FL_INLINE Floats keep_first(Floats x, int count, Floats other) {
    __mmask16 kept = count >= 16 ? 0xffff : count <= 0 ? 0 : (1u << count) - 1;
    return {_mm512_mask_mov_ps(other.a, kept, x.a)};
}
FL_INLINE float total(Floats x) {
    __m256 s = _mm256_add_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}
FL_INLINE float most(Floats x) {
    __m256 s = _mm256_max_ps(_mm512_castps512_ps256(x.a), _mm512_extractf32x8_ps(x.a, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
FL_INLINE int store_bytes(std::int8_t* p, Floats x) {
    __m512i values = _mm512_cvtps_epi32(x.a);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(values));
    return _mm512_reduce_add_epi32(values);
}

struct Bytes {
    __m512i a;
};

// Every second group of q8 begins in the middle of a line: its 544 bytes are eight lines and a half.
FL_INLINE Bytes load_bytes(const std::uint8_t* p) { return {_mm512_loadu_si512(p)}; }
FL_INLINE void store_codes(std::uint8_t* p, Bytes x) { _mm512_store_si512(p, x.a); }
FL_INLINE Bytes low_halves(Bytes x) { return {_mm512_and_si512(x.a, _mm512_set1_epi8(0x0f))}; }
FL_INLINE Bytes high_halves(Bytes x) { return low_halves({_mm512_srli_epi16(x.a, 4)}); }
FL_INLINE int four(const std::int8_t* p) {
    int x;
    std::memcpy(&x, p, 4);
    return x;
}

struct Q4Sum {
    __m512i a;
};
FL_INLINE Q4Sum q4_zero() { return {_mm512_setzero_si512()}; }
FL_INLINE void q4_step(Q4Sum& sum, Bytes codes, int x) {
    sum.a = _mm512_dpbusd_epi32(sum.a, codes.a, _mm512_set1_epi32(x));
}
FL_INLINE Floats q4_total(Q4Sum sum) { return {_mm512_cvtepi32_ps(sum.a)}; }

using Q8Sum = Q4Sum;
using Q8Codes = Bytes;
FL_INLINE Q8Sum q8_zero() { return q4_zero(); }
FL_INLINE Q8Codes q8_codes(const std::uint8_t* p) { return load_bytes(p); }
FL_INLINE void q8_step(Q8Sum& sum, const Q8Codes& codes, int x) { q4_step(sum, codes, x); }
FL_INLINE Floats q8_total(Q8Sum sum, int offset) {
    return {_mm512_cvtepi32_ps(_mm512_sub_epi32(sum.a, _mm512_set1_epi32(offset)))};
}

}  // namespace firstlight::FL_ISA
