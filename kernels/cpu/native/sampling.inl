// What sampling does over a whole vocabulary; included once for each instruction set.
//
// From `above` on, values are padded to a multiple of 16 with −∞, and the padding is read. Sums and random bits are
// taken in four lanes of 64 bits in every instruction set, so that all give the same.

namespace firstlight::FL_ISA {

// values / temperature; returns the largest.
static float temper(const float* from, float* to, int count, float temperature) {
    Floats peak = splat(kNever), divisor = splat(temperature);
    int whole = count / kLanes * kLanes;
    for (int k = 0; k < whole; k += kLanes) {
        Floats x = div(load(from + k), divisor);
        store(to + k, x);
        peak = max(peak, x);
    }
    float best = most(peak);
    for (int k = whole; k < count; ++k) {
        to[k] = from[k] / temperature;
        best = std::max(best, to[k]);
    }
    return best;
}

FL_INLINE unsigned at_least(const float* values, __m256 edge) {  // a bit for each of sixteen
    unsigned low = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values), edge, _CMP_GE_OQ));
    unsigned high = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(values + 8), edge, _CMP_GE_OQ));
    return low | high << 8;
}

FL_INLINE unsigned first_lanes(int count) { return count >= kLanes ? 0xffffu : (1u << count) - 1; }

// The lowest index of a value of at least `edge`; −1 if there is none.
static int first(const float* values, int count, float edge) {
    __m256 limit = _mm256_set1_ps(edge);
    int whole = count / kLanes * kLanes;
    for (int k = 0; k < whole; k += kLanes)
        if (unsigned found = at_least(values + k, limit)) return k + __builtin_ctz(found);
    for (int k = whole; k < count; ++k)
        if (values[k] >= edge) return k;
    return -1;
}

// The lowest index of the largest value; −1 if one of them is not finite.
static int largest(const float* values, int count) {
    Floats peak = splat(kNever), wrong = splat(0.0f);
    int whole = count / kLanes * kLanes;
    for (int k = 0; k < whole; k += kLanes) {
        Floats x = load(values + k);
        peak = max(peak, x);
        wrong = fma(x, splat(0.0f), wrong);
    }
    float best = most(peak), bad = total(wrong);
    for (int k = whole; k < count; ++k) {
        best = std::max(best, values[k]);
        bad += values[k] * 0.0f;
    }
    return bad == 0.0f ? first(values, count, best) : -1;  // NaN is unequal too
}

// Which values are at least `edge`, ascending; returns how many.
static int above(const float* values, int count, float edge, std::int32_t* ids) {
    __m256 limit = _mm256_set1_ps(edge);
    int found = 0;
    for (int k = 0; k < count; k += kLanes)
        for (unsigned left = at_least(values + k, limit) & first_lanes(count - k); left; left &= left - 1)
            ids[found++] = k + __builtin_ctz(left);
    return found;
}

// eˣ in float64 for x ≤ 0, within 1 ulp; e⁰ is exactly 1. 2ⁿ · e^r with |r| ≤ ln 2 / 2, e^r by its
// Taylor series to r¹³, whose rest is below 5·10⁻¹⁸.
FL_INLINE __m256d exponential_of_4(__m256d x) {
    constexpr int how = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
    x = _mm256_max_pd(x, _mm256_set1_pd(-708.0));
    __m256d n = _mm256_round_pd(_mm256_mul_pd(x, _mm256_set1_pd(1.4426950408889634)), how);
    __m256d r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.62e42fefa39efp-1), x);  // ln 2 in two parts
    r = _mm256_fnmadd_pd(n, _mm256_set1_pd(0x1.abc9e3b39803fp-56), r);
    __m256d y = _mm256_set1_pd(1.0 / 6227020800);
    for (double c : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
                     1.0 / 120, 1.0 / 24, 1.0 / 6, 1.0 / 2, 1.0, 1.0})
        y = _mm256_fmadd_pd(y, r, _mm256_set1_pd(c));
    __m256i exponent = _mm256_cvtepi32_epi64(_mm256_cvtpd_epi32(n));
    return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(y), _mm256_slli_epi64(exponent, 52)));
}

// exp(value − peak) of each, if `to` is not null, and their sum. Where sixteen are so far below the
// peak that a sum in float64 does not feel them, they count as 0.
static double weigh(const float* values, int count, float peak, double* to) {
    constexpr float kNothing = -60.0f;
    __m256 floor = _mm256_set1_ps(peak + kNothing);
    __m256d most = _mm256_set1_pd(peak), zero = _mm256_setzero_pd(), sums[4] = {zero, zero, zero, zero};
    for (int k = 0; k < count; k += kLanes) {
        bool any = at_least(values + k, floor);
        if (!any && !to) continue;
#pragma GCC unroll 4
        for (int part = 0; part < 4; ++part) {
            __m256d x = _mm256_sub_pd(_mm256_cvtps_pd(_mm_loadu_ps(values + k + 4 * part)), most);
            __m256d weight = any ? exponential_of_4(x) : zero;
            sums[part] = _mm256_add_pd(sums[part], weight);
            if (to) _mm256_storeu_pd(to + k + 4 * part, weight);
        }
    }
    double lanes[4];
    _mm256_storeu_pd(lanes, _mm256_add_pd(_mm256_add_pd(sums[0], sums[1]), _mm256_add_pd(sums[2], sums[3])));
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

struct Words {  // of four counters: a lane of 64 bits each, whose low half counts
    __m256i a, b, c, d;
};

FL_INLINE __m256i every(std::uint32_t x) { return _mm256_set1_epi64x(x); }

FL_INLINE Words philox(int first_counter, const Noise& noise) {
    __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3);
    Words x{_mm256_add_epi64(every(first_counter), lane), every(noise.position), every(noise.choice), every(0)};
    std::uint32_t k0 = noise.key[0], k1 = noise.key[1];
#pragma GCC unroll 10
    for (int round = 0; round < Noise::kRounds; ++round) {
        __m256i high = _mm256_mul_epu32(x.a, every(Noise::kMultipliers[0]));
        __m256i low = _mm256_mul_epu32(x.c, every(Noise::kMultipliers[1]));
        x.a = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(low, 32), x.b), every(k0));
        x.c = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(high, 32), x.d), every(k1));
        x.b = low;
        x.d = high;
        k0 += Noise::kWeyl[0];
        k1 += Noise::kWeyl[1];
    }
    return x;
}

// The random bits of sixteen ids: four of each counter, one after the other.
FL_INLINE void noise_of_16(int first_id, const Noise& noise, std::uint32_t* bits) {
    Words x = philox(first_id / 4, noise);
    __m256i ab = _mm256_blend_epi32(x.a, _mm256_slli_epi64(x.b, 32), 0xaa);
    __m256i cd = _mm256_blend_epi32(x.c, _mm256_slli_epi64(x.d, 32), 0xaa);
    __m256i even = _mm256_unpacklo_epi64(ab, cd), odd = _mm256_unpackhi_epi64(ab, cd);
    auto* to = reinterpret_cast<__m256i*>(bits);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
}

// The lowest 8 of 32 random bits are left out: what remains is at most u, and exact as a float.
FL_INLINE unsigned could_win(const std::uint32_t* bits, const float* shares) {
    unsigned found = 0;
    for (int half = 0; half < 2; ++half) {
        __m256i top = _mm256_srli_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits) + half), 8);
        __m256 u = _mm256_mul_ps(_mm256_cvtepi32_ps(top), _mm256_set1_ps(0x1p-24f));
        found |= _mm256_movemask_ps(_mm256_cmp_ps(u, _mm256_loadu_ps(shares + 8 * half), _CMP_LE_OQ)) << 8 * half;
    }
    return found;
}

// Ids with a value of at least `floor` whose u is at most exp(value − bound), and their bits.
static int likely(const float* values, int count, float floor, float bound, const Noise& noise, std::int32_t* ids,
                  std::uint32_t* bits_of_ids) {
    __m256 limit = _mm256_set1_ps(floor);
    int found = 0;
    for (int k = 0; k < count; k += kLanes) {
        unsigned able = at_least(values + k, limit);
        if (!able) continue;
        std::uint32_t bits[kLanes];
        float shares[kLanes];
        noise_of_16(k, noise, bits);
        store(shares, exponential(sub(load(values + k), splat(bound))));
        for (unsigned left = able & could_win(bits, shares); left; left &= left - 1) {
            int lane = __builtin_ctz(left);
            ids[found] = k + lane;
            bits_of_ids[found++] = bits[lane];
        }
    }
    return found;
}

}  // namespace firstlight::FL_ISA
