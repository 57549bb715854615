// The kernels, written over sixteen lanes; included once for each instruction set.

namespace firstlight::FL_ISA {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr float kLeastPeak = 1e-30f;  // a group of smaller values counts as zeros: 127 / peak stays finite
constexpr int kRowsTogether = 256;  // rows that pass a panel while it and they are in the cache

// Calls body(integral_constant<R>, row) for tiles of R rows, then halves of that for what is left.
template <int R, class Body>
FL_INLINE void for_tiles(int row, int end, const Body& body) {
    for (; row + R <= end; row += R) body(std::integral_constant<int, R>{}, row);
    if constexpr (R > 1) for_tiles<R / 2>(row, end, body);
}

// eˣ within 2 ulp: 2ⁿ · e^r with |r| ≤ ln 2 / 2 (polynomial of Cephes' expf); e⁰ is exactly 1.
FL_INLINE Floats exponential(Floats x) {
    x = min(max(x, splat(-87.3f)), splat(88.3f));
    Floats n = rounded(mul(x, splat(1.44269504f)));
    Floats r = fma(n, splat(-0.693359375f), x);
    r = fma(n, splat(2.12194440e-4f), r);
    Floats y = splat(1.9875691500e-4f);
    for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        y = fma(y, r, splat(c));
    y = add(fma(y, mul(r, r), r), splat(1.0f));
    return scaled(y, n);
}

FL_INLINE float exponential_of(float x) {
    float lanes[kLanes];
    store(lanes, exponential(splat(x)));
    return lanes[0];
}

FL_INLINE Floats silu(Floats x) {
    return div(x, add(splat(1.0f), exponential(sub(splat(0.0f), x))));
}

FL_INLINE float inverse_norm(const float* x, int size, float eps) {
    Floats squares = splat(0.0f);
    for (int k = 0; k < size; k += kLanes) {
        Floats v = load(x + k);
        squares = fma(v, v, squares);
    }
    return 1.0f / std::sqrt(total(squares) / static_cast<float>(size) + eps);
}

static void norm(float* x, const float* weight, int size, float eps) {
    Floats inverse = splat(inverse_norm(x, size, eps));
    for (int k = 0; k < size; k += kLanes)
        store(x + k, mul(mul(load(x + k), inverse), load(weight + k)));
}

static void prepare(Activations& to, int row, const float* x, const float* weight, float eps, bool quantize) {
    int inputs = to.inputs, groups = inputs / kGroup;
    Floats inverse = splat(weight ? inverse_norm(x, inputs, eps) : 1.0f);
    auto value = [&](int k) __attribute__((always_inline)) {
        Floats v = load(x + k);
        return weight ? mul(mul(v, inverse), load(weight + k)) : v;
    };
    if (!quantize) {
        float* out = to.values.get() + static_cast<std::size_t>(row) * inputs;
        for (int k = 0; k < inputs; k += kLanes) store(out + k, value(k));
        return;
    }
    std::int8_t* codes = to.codes.get() + static_cast<std::size_t>(row) * inputs;
    float* scales = to.scales.get() + static_cast<std::size_t>(row) * groups;
    std::int32_t* sums = to.sums.get() + static_cast<std::size_t>(row) * groups;
    float* scaled_sums = to.scaled_sums.get() + static_cast<std::size_t>(row) * groups;
    for (int g = 0; g < groups; ++g) {
        Floats a = value(g * kGroup), b = value(g * kGroup + kLanes);
        float peak = most(max(absolute(a), absolute(b)));
        float wrong = total(add(mul(a, splat(0.0f)), mul(b, splat(0.0f))));  // NaN if one is not finite
        if (wrong != 0.0f) a = b = splat(0.0f);  // what has no value gets codes that have one
        Floats inverse_scale = splat(peak > kLeastPeak ? 127.0f / peak : 0.0f);
        std::int8_t* at = codes + g * kGroup;
        sums[g] = store_bytes(at, rounded(mul(a, inverse_scale)));
        sums[g] += store_bytes(at + kLanes, rounded(mul(b, inverse_scale)));
        scales[g] = peak / 127.0f + wrong;
        scaled_sums[g] = scales[g] * static_cast<float>(sums[g]);
    }
}

// Products of R rows with one panel; `sums` are the rows' sixteen outputs.
template <int R>
FL_INLINE void times_q4(const std::uint8_t* panel, const Activations& x, int row, Floats* sums) {
    int inputs = x.inputs, groups = inputs / kGroup;
    const std::int8_t* codes = x.codes.get() + static_cast<std::size_t>(row) * inputs;
    const float* scales = x.scales.get() + static_cast<std::size_t>(row) * groups;
    const float* totals = x.scaled_sums.get() + static_cast<std::size_t>(row) * groups;
    Floats own[R];
    for (int r = 0; r < R; ++r) own[r] = splat(0.0f);
    for (int g = 0; g < groups; ++g, panel += 320, codes += kGroup) {
        Q4Sum parts[R];
        for (int r = 0; r < R; ++r) parts[r] = q4_zero();
#pragma GCC unroll 4
        for (int pair = 0; pair < 4; ++pair) {
            Bytes both = load_bytes(panel + 64 * pair);
            Bytes low = low_halves(both), high = high_halves(both);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const std::int8_t* at = codes + static_cast<std::size_t>(r) * inputs + 8 * pair;
                q4_step(parts[r], low, four(at));
                q4_step(parts[r], high, four(at + 4));
            }
        }
        Floats scale = load_half(panel + 256), minimum = load_half(panel + 288);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            own[r] = fma(mul(scale, splat(scales[r * groups + g])), q4_total(parts[r]), own[r]);
            own[r] = fma(minimum, splat(totals[r * groups + g]), own[r]);
        }
    }
    for (int r = 0; r < R; ++r) sums[r] = own[r];
}

// The same of an open panel. A function of its own: it wants all registers.
template <int R>
__attribute__((noinline)) static void times_open(const std::uint8_t* panel, const Activations& x, int row, Floats* sums) {
    int inputs = x.inputs, groups = inputs / kGroup;
    const std::int8_t* codes = x.codes.get() + static_cast<std::size_t>(row) * inputs;
    const float* scales = x.scales.get() + static_cast<std::size_t>(row) * groups;
    const float* totals = x.scaled_sums.get() + static_cast<std::size_t>(row) * groups;
    Floats own[R];
    for (int r = 0; r < R; ++r) own[r] = splat(0.0f);
    for (int g = 0; g < groups; ++g, panel += kOpenGroup, codes += kGroup) {
        Q4Sum parts[R];
        for (int r = 0; r < R; ++r) parts[r] = q4_zero();
#pragma GCC unroll 8
        for (int step = 0; step < 8; ++step) {
            Bytes both = load_bytes(panel + 64 * step);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                q4_step(parts[r], both, four(codes + static_cast<std::size_t>(r) * inputs + 4 * step));
        }
        auto* scale = reinterpret_cast<const float*>(panel + 512);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            own[r] = fma(mul(load(scale), splat(scales[r * groups + g])), q4_total(parts[r]), own[r]);
            own[r] = fma(load(scale + kLanes), splat(totals[r * groups + g]), own[r]);
        }
    }
    for (int r = 0; r < R; ++r) sums[r] = own[r];
}

// Takes the codes of a q4 panel apart, once for all rows that are to meet it.
FL_INLINE const std::uint8_t* opened(const std::uint8_t* panel, int groups, std::uint8_t* open) {
    std::uint8_t* to = open;
    for (int g = 0; g < groups; ++g, panel += 320, to += kOpenGroup) {
        for (int pair = 0; pair < 4; ++pair) {
            Bytes both = load_bytes(panel + 64 * pair);
            store_codes(to + 128 * pair, low_halves(both));
            store_codes(to + 128 * pair + 64, high_halves(both));
        }
        auto* scale = reinterpret_cast<float*>(to + 512);
        store(scale, load_half(panel + 256));
        store(scale + kLanes, load_half(panel + 288));
    }
    return open;
}

template <int R>
FL_INLINE void times_q8(const std::uint8_t* panel, const Activations& x, int row, Floats* sums) {
    int inputs = x.inputs, groups = inputs / kGroup;
    const std::int8_t* codes = x.codes.get() + static_cast<std::size_t>(row) * inputs;
    const float* scales = x.scales.get() + static_cast<std::size_t>(row) * groups;
    const std::int32_t* totals = x.sums.get() + static_cast<std::size_t>(row) * groups;
    for (int g = 0; g < groups; ++g, panel += 544, codes += kGroup) {
        Q8Sum parts[R];
        for (int r = 0; r < R; ++r) parts[r] = q8_zero();
#pragma GCC unroll 8
        for (int step = 0; step < 8; ++step) {
            Q8Codes own = q8_codes(panel + 64 * step);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r)
                q8_step(parts[r], own, four(codes + static_cast<std::size_t>(r) * inputs + 4 * step));
        }
        Floats scale = load_half(panel + 512);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            Floats exact = q8_total(parts[r], 128 * totals[r * groups + g]);
            sums[r] = fma(mul(scale, splat(scales[r * groups + g])), exact, sums[r]);
        }
    }
}

template <int R, bool Wide>
FL_INLINE void times_floats(const std::uint8_t* panel, const Activations& x, int row, Floats* sums) {
    int inputs = x.inputs;
    const float* values = x.values.get() + static_cast<std::size_t>(row) * inputs;
    Floats own[R];
    for (int r = 0; r < R; ++r) own[r] = splat(0.0f);
    for (int k = 0; k < inputs; ++k) {
        Floats weights = Wide ? load(reinterpret_cast<const float*>(panel) + k * kLanes) : load_bf16(panel + k * 2 * kLanes);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
            own[r] = fma(splat(values[static_cast<std::size_t>(r) * inputs + k]), weights, own[r]);
    }
    for (int r = 0; r < R; ++r) sums[r] = own[r];
}

template <Format F, bool Open, int R>
FL_INLINE void times(const std::uint8_t* panel, const Activations& x, int row, Floats* sums) {
    for (int r = 0; r < R; ++r) sums[r] = splat(0.0f);
    if constexpr (F == Format::q4 && !Open) times_q4<R>(panel, x, row, sums);
    if constexpr (F == Format::q4 && Open) times_open<R>(panel, x, row, sums);
    if constexpr (F == Format::q8) times_q8<R>(panel, x, row, sums);
    if constexpr (F == Format::bf16) times_floats<R, false>(panel, x, row, sums);
    if constexpr (F == Format::f32) times_floats<R, true>(panel, x, row, sums);
}

// Sixteen outputs of a row; a panel's zeros beyond the matrix are not written.
FL_INLINE void put(const Target& target, int row, int first, int outputs, Floats sum) {
    if (target.bias) sum = add(sum, load(target.bias + first));
    float* out = target.out + static_cast<std::size_t>(row) * target.width + first;
    int count = outputs - first;
    if (count >= kLanes) {
        store(out, target.finish == Finish::add ? add(load(out), sum) : sum);
        return;
    }
    float lanes[kLanes];
    store(lanes, sum);
    for (int lane = 0; lane < count; ++lane)
        out[lane] = target.finish == Finish::add ? out[lane] + lanes[lane] : lanes[lane];
}

template <Format F, bool Open, int R>
static void multiply(const Matrix& weights, const Activations& x, int rows, int first_panel, int end_panel, const Target& target, std::uint8_t* open) {
    auto panel_at = [&](int panel, int place) __attribute__((always_inline)) {
        const std::uint8_t* packed = weights.panel(panel);
        int groups = x.inputs / kGroup;
        return Open ? opened(packed, groups, open + static_cast<std::size_t>(place) * groups * kOpenGroup) : packed;
    };
    for (int begin = 0; begin < rows; begin += kRowsTogether) {
        int end = std::min(rows, begin + kRowsTogether);
        if (target.finish == Finish::silu_mul) {
            for (int panel = first_panel; panel + 1 < end_panel; panel += 2) {
                const std::uint8_t *gates = panel_at(panel, 0), *ups = panel_at(panel + 1, 1);
                for_tiles<R>(begin, end, [&](auto tile, int row) __attribute__((always_inline)) {
                    Floats gate[tile.value], up[tile.value];
                    times<F, Open, tile.value>(gates, x, row, gate);
                    times<F, Open, tile.value>(ups, x, row, up);
                    for (int r = 0; r < tile.value; ++r) {
                        float* out = target.out + static_cast<std::size_t>(row + r) * target.width;
                        store(out + panel / 2 * kLanes, mul(silu(gate[r]), up[r]));
                    }
                });
            }
            continue;
        }
        for (int panel = first_panel; panel < end_panel; ++panel) {
            const std::uint8_t* own = panel_at(panel, 0);
            for_tiles<R>(begin, end, [&](auto tile, int row) __attribute__((always_inline)) {
                Floats sums[tile.value];
                times<F, Open, tile.value>(own, x, row, sums);
                for (int r = 0; r < tile.value; ++r)
                    put(target, row + r, panel * kLanes, weights.outputs, sums[r]);
            });
        }
    }
}

static void matmul(const Matrix& weights, const Activations& x, int rows, int first_panel, int end_panel, const Target& target, std::uint8_t* open) {
    auto with = [&](auto multiply) { multiply(weights, x, rows, first_panel, end_panel, target, open); };
    switch (weights.format) {
        case Format::q4:
            if (rows < 2 * kOpenRows) return with(multiply<Format::q4, false, kQ4Rows>);  // opening would take longer
            return with(multiply<Format::q4, true, kOpenRows>);
        case Format::q8: return with(multiply<Format::q8, false, kQ8Rows>);
        case Format::bf16: return with(multiply<Format::bf16, false, kFloatRows>);
        case Format::f32: return with(multiply<Format::f32, false, kFloatRows>);
    }
}

FL_INLINE Floats storable(Floats x) {  // no infinity and no NaN gets into the pool
    return max(min(x, splat(65504.0f)), splat(-65504.0f));
}

static void rotate_and_write(float* row, const float* cosine, const float* sine, const Shape& shape, const Pages& pages, int block, int offset) {
    int dim = shape.head_dim, half = dim / 2;
    for (int head = 0; head < shape.heads + shape.kv_heads; ++head) {
        float* x = row + head * dim;
        for (int k = 0; k < half; ++k) {  // x·cos ± swapped·sin, rounded as written
            float a = x[k], b = x[k + half];
            x[k] = std::fma(a, cosine[k], -(b * sine[k]));
            x[k + half] = std::fma(b, cosine[k], a * sine[k]);
        }
    }
    for (int head = 0; head < shape.kv_heads; ++head) {
        std::size_t at = block * pages.block_size + head * pages.head_size;
        const float* key = row + (shape.heads + head) * dim;
        const float* value = key + shape.kv_heads * dim;
        std::uint16_t halves[kLanes];
        for (int k = 0; k < dim; k += kLanes) {
            store_half(halves, storable(load(key + k)));
            for (int lane = 0; lane < kLanes; ++lane)
                pages.keys[at + (k + lane) * kBlock + offset] = halves[lane];
            store_half(pages.values + at + offset * dim + k, storable(load(value + k)));
        }
    }
}

struct Seen {  // what R rows see of a chunk
    const std::int32_t* blocks;
    int count;  // blocks
    int keys;   // of the row that sees most
};

// The `first` rows of a tile call keys and values here while they compute: blocks lie anywhere, and no
// prefetcher of hardware finds the next one.
template <int R>
FL_INLINE void score(const float* const* queries, const Seen& seen, int dim, const Pages& pages, std::size_t head, float* scores, bool first) {
    for (int b = 0; b < seen.count; ++b) {
        const std::uint16_t* keys = pages.keys + seen.blocks[b] * pages.block_size + head;
        const std::uint16_t* next = pages.keys + seen.blocks[std::min(b + 1, seen.count - 1)] * pages.block_size + head;
        const std::uint16_t* values = pages.values + seen.blocks[b] * pages.block_size + head;
        Floats sums[R];
        for (int r = 0; r < R; ++r) sums[r] = splat(0.0f);
        for (int k = 0; k < dim; ++k) {
            if (first) __builtin_prefetch((k % 2 ? values : next) + k / 2 * 2 * kBlock);
            Floats lanes = load_half(keys + k * kBlock);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) sums[r] = fma(splat(queries[r][k]), lanes, sums[r]);
        }
        for (int r = 0; r < R; ++r) store(scores + r * kChunk + b * kBlock, sums[r]);
    }
}

// Scores of one row become exp(scale · score − most), 0 for keys that it does not see.
FL_INLINE void soften(float* scores, int visible, int blocks, float scale, float& most_of_row, float& total_of_row) {
    int own = (visible + kBlock - 1) / kBlock;
    Floats peak = splat(kNever), sum = splat(0.0f);
    for (int b = 0; b < own; ++b) {
        Floats x = keep_first(mul(load(scores + b * kBlock), splat(scale)), visible - b * kBlock, splat(kNever));
        store(scores + b * kBlock, x);
        peak = max(peak, x);
    }
    most_of_row = most(peak);
    for (int b = 0; b < own; ++b) {
        Floats x = exponential(sub(load(scores + b * kBlock), splat(most_of_row)));
        x = keep_first(x, visible - b * kBlock, splat(0.0f));
        store(scores + b * kBlock, x);
        sum = add(sum, x);
    }
    total_of_row = total(sum);
    for (int b = own; b < blocks; ++b) store(scores + b * kBlock, splat(0.0f));
}

template <int R>
FL_INLINE void weigh(const float* scores, const Seen& seen, int dim, const Pages& pages, std::size_t head, float* out) {
    for (int slice = 0; slice < dim; slice += kLanes) {
        Floats sums[R];
        for (int r = 0; r < R; ++r) sums[r] = splat(0.0f);
        for (int b = 0; b < seen.count; ++b) {
            const std::uint16_t* values = pages.values + seen.blocks[b] * pages.block_size + head + slice;
            int keys = std::min(kBlock, seen.keys - b * kBlock);
            const float* weights = scores + b * kBlock;
            for (int t = 0; t < keys; ++t) {
                Floats lanes = load_half(values + t * dim);
#pragma GCC unroll 16
                for (int r = 0; r < R; ++r) sums[r] = fma(splat(weights[r * kChunk + t]), lanes, sums[r]);
            }
        }
        for (int r = 0; r < R; ++r) store(out + r * dim + slice, sums[r]);
    }
}

static_assert(kFloatRows <= kScoreRows);

static void attend(const float* rows, const Tile& tile, int kv_head, int chunk, const Shape& shape, const Pages& pages, float* scores, const Partial& to) {
    int dim = shape.head_dim, group = shape.group(), first = chunk * kChunk;
    std::size_t width = static_cast<std::size_t>(shape.row_heads()) * dim, head = kv_head * pages.head_size;
    float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    int lines = tile.tokens * group;
    Seen seen{tile.table + first / kBlock, 0, std::min(kChunk, tile.first_position + tile.tokens - first)};
    seen.count = (seen.keys + kBlock - 1) / kBlock;
    for_tiles<kFloatRows>(0, lines, [&](auto size, int line) __attribute__((always_inline)) {
        const float* queries[size.value];
        for (int r = 0; r < size.value; ++r) {
            int token = (line + r) / group, member = (line + r) % group;
            queries[r] = rows + (tile.first_row + token) * width + (kv_head * group + member) * dim;
        }
        score<size.value>(queries, seen, dim, pages, head, scores, line == 0);
        for (int r = 0; r < size.value; ++r) {
            int visible = std::min(kChunk, tile.first_position + (line + r) / group + 1 - first);
            soften(scores + r * kChunk, std::max(visible, 0), seen.count, scale, to.most[line + r], to.total[line + r]);
        }
        weigh<size.value>(scores, seen, dim, pages, head, to.sums + static_cast<std::size_t>(line) * dim);
    });
}

static void merge(const Partial& into, const Partial& other, int rows, int dim) {
    for (int row = 0; row < rows; ++row) {
        if (other.most[row] == kNever) continue;  // it saw nothing there
        float most_of_both = std::max(into.most[row], other.most[row]);
        float before = exponential_of(into.most[row] - most_of_both), after = exponential_of(other.most[row] - most_of_both);
        into.most[row] = most_of_both;
        into.total[row] = std::fma(into.total[row], before, other.total[row] * after);
        float* sums = into.sums + static_cast<std::size_t>(row) * dim;
        const float* more = other.sums + static_cast<std::size_t>(row) * dim;
        for (int k = 0; k < dim; k += kLanes)
            store(sums + k, fma(load(sums + k), splat(before), mul(load(more + k), splat(after))));
    }
}

static void finish(const Partial& sums, const Tile& tile, int kv_head, const Shape& shape, float* out) {
    int dim = shape.head_dim, group = shape.group();
    for (int line = 0; line < tile.tokens * group; ++line) {
        std::size_t row = tile.first_row + line / group;
        float* to = out + (row * shape.heads + kv_head * group + line % group) * dim;
        for (int k = 0; k < dim; k += kLanes)
            store(to + k, div(load(sums.sums + static_cast<std::size_t>(line) * dim + k), splat(sums.total[line])));
    }
}

}  // namespace firstlight::FL_ISA

#include "sampling.inl"

namespace firstlight::FL_ISA {

constexpr Kernels table{kName,  prepare, norm,    matmul, rotate_and_write, attend, merge,
                        finish, largest, temper, first,  above,            weigh,  likely};

}  // namespace firstlight::FL_ISA
