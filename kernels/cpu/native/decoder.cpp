#include "decoder.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace firstlight {

namespace {

constexpr int kTileLines = 24;       // rows that share a pass over a chunk of keys
constexpr int kTasksPerThread = 4;   // fewer tiles than this: chunks of a tile are shared out

void require(bool holds, const std::string& what) {
    if (!holds) throw std::invalid_argument(what);
}

void require_shape(const Weights& weights, int outputs, int inputs, const char* name) {
    require(weights && weights->outputs == outputs && weights->inputs == inputs,
            std::string(name) + " has the wrong shape");
}

Numbers padded(Numbers values) {
    values.resize((values.size() + kLanes - 1) / kLanes * kLanes);
    return values;
}

}  // namespace

void Activations::reserve(int rows, int inputs_of_row) {
    inputs = inputs_of_row;
    std::size_t size = static_cast<std::size_t>(rows) * inputs;
    values = aligned<float>(size);
    codes = aligned<std::int8_t>(size);
    scales = aligned<float>(size / kGroup + 1);
    sums = aligned<std::int32_t>(size / kGroup + 1);
    scaled_sums = aligned<float>(size / kGroup + 1);
}

Decoder::Decoder(const std::string& kernels, int threads, Config config)
    : kernels_(&kernels_named(kernels)), config_(std::move(config)), team_(threads) {
    const Config& c = config_;
    for (int size : {c.head_dim, c.hidden, c.intermediate})
        require(size > 0 && size % kLanes == 0, "head_dim, hidden and intermediate sizes must be multiples of 16");
    require(c.kv_heads > 0 && c.heads % c.kv_heads == 0, "heads are not a multiple of key/value heads");
    require(c.frequencies.size() * 2 == static_cast<std::size_t>(c.head_dim), "one rotary frequency for two values");
    lines_max_ = std::max(kTileLines, shape().group());
    part_ = static_cast<std::size_t>(lines_max_) * (c.head_dim + 2);
    std::size_t open = open_bytes(std::max({c.hidden, c.heads * c.head_dim, c.intermediate}));
    for (int thread = 0; thread < threads; ++thread)
        scratch_.push_back({aligned<float>(kScoreRows * kChunk), aligned<float>(part_), aligned<float>(part_),
                            aligned<std::uint8_t>(open)});
}

void Decoder::add(Layer layer) {
    const Config& c = config_;
    int qkv = shape().row_heads() * c.head_dim, heads = c.heads * c.head_dim;
    require_shape(layer.qkv, qkv, c.hidden, "qkv");
    require_shape(layer.output, c.hidden, heads, "output");
    require_shape(layer.gate_up, 2 * c.intermediate, c.hidden, "gate_up");
    require_shape(layer.down, c.hidden, c.intermediate, "down");
    auto sized = [](const Numbers& values, int size, bool needed) {
        return static_cast<int>(values.size()) == size || (values.empty() && !needed);
    };
    require(sized(layer.attention_norm, c.hidden, true) && sized(layer.mlp_norm, c.hidden, true) &&
                sized(layer.qkv_bias, qkv, false) && sized(layer.q_norm, c.head_dim, false) &&
                sized(layer.k_norm, c.head_dim, false),
            "a norm or bias has the wrong size");
    if (!layer.qkv_bias.empty()) layer.qkv_bias = padded(std::move(layer.qkv_bias));
    layers_.push_back(std::move(layer));
}

void Decoder::end(Weights embedding, Numbers norm, Weights head) {
    require_shape(embedding, config_.vocab, config_.hidden, "embedding");
    require_shape(head, config_.vocab, config_.hidden, "head");
    require(static_cast<int>(norm.size()) == config_.hidden, "the last norm has the wrong size");
    embedding_ = std::move(embedding);
    norm_ = std::move(norm);
    head_ = std::move(head);
}

void Decoder::run(const Step& step) {
    check(step);
    plan(step);
    reserve(step);
    team_.run([&](int thread) { work(step, thread); });
}

void Decoder::sample(const float* logits, const Draw* draws, int rows, const Lists& lists, std::int64_t* ids) {
    std::vector<Lists> own{lists};
    for (int row = 0; row < rows; ++row) own.push_back(own.back().after(draws[row]));
    auto within = [&](const std::int64_t* first, const std::int64_t* end, const char* name) {
        auto inside = [&](std::int64_t id) { return 0 <= id && id < config_.vocab; };
        auto wrong = std::find_if_not(first, end, inside);
        if (wrong == end) return;
        throw std::invalid_argument(std::string(name) + " has id " + std::to_string(*wrong) +
                                    ", outside of the vocabulary");
    };
    within(lists.bias_ids, own.back().bias_ids, "logit_bias");
    within(lists.seen, own.back().seen, "history");
    within(lists.counted, own.back().counted, "history");
    while (static_cast<int>(samplers_.size()) < team_.size()) samplers_.emplace_back(*kernels_, config_.vocab);
    auto one = [&](int thread, int row) {
        const float* own_logits = logits + static_cast<std::size_t>(row) * config_.vocab;
        ids[row] = samplers_[thread].sample(own_logits, draws[row], own[row]);
    };
    if (rows == 1) return one(0, 0);  // wakes nobody
    team_.run([&](int thread) {
        team_.each(rows, 1, [&](int begin, int) { one(thread, begin); });
    });
}

void Decoder::check(const Step& step) const {
    require(head_ != nullptr, "the model is not complete");
    require(step.rows > 0, "a step without rows");
    auto within = [](const std::int64_t* values, int count, std::int64_t end) {
        return std::all_of(values, values + count, [end](std::int64_t v) { return 0 <= v && v < end; });
    };
    require(within(step.ids, step.rows, config_.vocab), "ids has a value outside of the vocabulary");
    require(within(step.positions, step.rows, INT32_MAX), "positions has a negative value");
    require(within(step.slots, step.rows, static_cast<std::int64_t>(step.blocks) * kBlock),
            "slots has a value outside of the pool");
    require(within(step.logit_rows, step.wanted, step.rows), "logit_rows has a value outside of the step");
    int row = 0;
    for (int s = 0; s < step.spans; ++s) {
        const Span& span = step.span[s];
        std::string name = "span " + std::to_string(s);
        require(span.first_row == row && span.rows > 0 && span.rows <= span.context,
                name + " contradicts those before it");
        row += span.rows;
        const std::int32_t* table = step.tables + step.table_offsets[s];
        int length = step.table_offsets[s + 1] - step.table_offsets[s];
        int need = (span.context - 1) / kBlock + 1;
        require(length >= need, name + " has a block table that is too short");
        require(std::all_of(table, table + need, [&](std::int32_t b) { return 0 <= b && b < step.blocks; }),
                name + " names a block outside of the pool");
    }
    require(row == step.rows, "the spans do not cover the rows");
}

// Which tiles of queries meet which chunks of keys: the longest first, for an even end.
void Decoder::plan(const Step& step) {
    tasks_.clear();
    splits_.clear();
    int most_tokens = std::max(1, kTileLines / shape().group());
    std::vector<Tile> tiles;
    for (int s = 0; s < step.spans; ++s) {
        const Span& span = step.span[s];
        for (int token = 0; token < span.rows; token += most_tokens) {
            tiles.push_back({step.tables + step.table_offsets[s], span.first_row + token,
                             std::min(most_tokens, span.rows - token), span.context - span.rows + token});
        }
    }
    auto end_of = [](const Tile& tile) { return tile.first_position + tile.tokens; };
    std::stable_sort(tiles.begin(), tiles.end(), [&](const Tile& a, const Tile& b) { return end_of(a) > end_of(b); });
    bool few = static_cast<int>(tiles.size()) * config_.kv_heads < team_.size() * kTasksPerThread && team_.size() > 1;
    int slot = 0;
    for (const Tile& tile : tiles) {
        int chunks = (end_of(tile) - 1) / kChunk + 1;
        for (int head = 0; head < config_.kv_heads; ++head) {
            if (!few || chunks == 1) {
                tasks_.push_back({tile, head, 0, chunks, -1});
                continue;
            }
            splits_.push_back({tile, head, slot, chunks});
            for (int chunk = 0; chunk < chunks; ++chunk) tasks_.push_back({tile, head, chunk, chunk + 1, slot++});
        }
    }
    if (slot * part_ > parts_reserved_) {
        parts_reserved_ = slot * part_;
        parts_ = aligned<float>(parts_reserved_);
    }
}

void Decoder::reserve(const Step& step) {
    if (step.rows <= rows_reserved_) return;
    const Config& c = config_;
    std::size_t rows = rows_reserved_ = std::max(step.rows, 16);
    x_ = aligned<float>(rows * c.hidden);
    rows_ = aligned<float>(rows * shape().row_heads() * c.head_dim);
    heads_out_ = aligned<float>(rows * c.heads * c.head_dim);
    wide_ = aligned<float>(rows * c.intermediate);
    cosine_ = aligned<float>(rows * c.head_dim / 2);
    sine_ = aligned<float>(rows * c.head_dim / 2);
    hidden_in_.reserve(rows_reserved_, c.hidden);
    heads_in_.reserve(rows_reserved_, c.heads * c.head_dim);
    wide_in_.reserve(rows_reserved_, c.intermediate);
}

void Decoder::work(const Step& step, int thread) {
    const Config& c = config_;
    int half = c.head_dim / 2;
    team_.each(step.rows, team_.grain(step.rows), [&](int begin, int end) {
        for (int row = begin; row < end; ++row) {
            embedding_->row(static_cast<int>(step.ids[row]), x_.get() + static_cast<std::size_t>(row) * c.hidden);
            for (int k = 0; k < half; ++k) {
                double angle = static_cast<double>(step.positions[row]) * c.frequencies[k];
                cosine_[static_cast<std::size_t>(row) * half + k] = static_cast<float>(std::cos(angle));
                sine_[static_cast<std::size_t>(row) * half + k] = static_cast<float>(std::sin(angle));
            }
        }
    });
    for (int index = 0; index < static_cast<int>(layers_.size()); ++index) layer(step, index, thread);
    if (step.wanted > 0) logits(step, thread);
}

void Decoder::layer(const Step& step, int index, int thread) {
    const Config& c = config_;
    const Layer& layer = layers_[index];
    Shape shape = this->shape();
    std::size_t head_size = static_cast<std::size_t>(kBlock) * c.head_dim;
    std::size_t block_size = head_size * c.kv_heads, half_layer = block_size * step.blocks;
    std::uint16_t* keys = step.pages + 2 * half_layer * index;
    Pages pages{keys, keys + half_layer, head_size, block_size};
    int width = shape.row_heads() * c.head_dim;

    prepare(hidden_in_, x_.get(), step.rows, layer.attention_norm.data(), *layer.qkv);
    matmul(*layer.qkv, hidden_in_, step.rows,
           {Finish::store, rows_.get(), width, layer.qkv_bias.empty() ? nullptr : layer.qkv_bias.data()}, thread);
    team_.each(step.rows, team_.grain(step.rows), [&](int begin, int end) {
        for (int row = begin; row < end; ++row) {
            float* own = rows_.get() + static_cast<std::size_t>(row) * width;
            for (int head = 0; head < c.heads + c.kv_heads; ++head) {
                const Numbers& weight = head < c.heads ? layer.q_norm : layer.k_norm;
                if (!weight.empty()) kernels_->norm(own + head * c.head_dim, weight.data(), c.head_dim, c.rms_eps);
            }
            std::size_t turn = static_cast<std::size_t>(row) * c.head_dim / 2;
            kernels_->rotate_and_write(own, cosine_.get() + turn, sine_.get() + turn, shape, pages,
                                       static_cast<int>(step.slots[row] / kBlock),
                                       static_cast<int>(step.slots[row] % kBlock));
        }
    });
    attention(pages, thread);
    prepare(heads_in_, heads_out_.get(), step.rows, nullptr, *layer.output);
    matmul(*layer.output, heads_in_, step.rows, {Finish::add, x_.get(), c.hidden, nullptr}, thread);
    prepare(hidden_in_, x_.get(), step.rows, layer.mlp_norm.data(), *layer.gate_up);
    matmul(*layer.gate_up, hidden_in_, step.rows, {Finish::silu_mul, wide_.get(), c.intermediate, nullptr}, thread);
    prepare(wide_in_, wide_.get(), step.rows, nullptr, *layer.down);
    matmul(*layer.down, wide_in_, step.rows, {Finish::add, x_.get(), c.hidden, nullptr}, thread);
}

void Decoder::attention(const Pages& pages, int thread) {
    Shape shape = this->shape();
    Scratch& scratch = scratch_[thread];
    Partial here = partial(scratch.here.get()), other = partial(scratch.other.get());
    team_.each(static_cast<int>(tasks_.size()), 1, [&](int begin, int end) {
        for (const Task* task = &tasks_[begin]; task != &tasks_[0] + end; ++task) {
            const Tile& tile = task->tile;
            Partial into = task->slot < 0 ? here : partial(parts_.get() + task->slot * part_);
            for (int chunk = task->first_chunk; chunk < task->end_chunk; ++chunk) {
                bool first = chunk == task->first_chunk;
                kernels_->attend(rows_.get(), tile, task->kv_head, chunk, shape, pages, scratch.scores.get(),
                                 first ? into : other);
                if (!first) kernels_->merge(into, other, tile.tokens * shape.group(), shape.head_dim);
            }
            if (task->slot < 0) kernels_->finish(into, tile, task->kv_head, shape, heads_out_.get());
        }
    });
    if (splits_.empty()) return;
    team_.each(static_cast<int>(splits_.size()), 1, [&](int begin, int end) {
        for (const Split* split = &splits_[begin]; split != &splits_[0] + end; ++split) {
            Partial into = partial(parts_.get() + split->first_slot * part_);
            for (int chunk = 1; chunk < split->chunks; ++chunk) {
                Partial later = partial(parts_.get() + (split->first_slot + chunk) * part_);
                kernels_->merge(into, later, split->tile.tokens * shape.group(), shape.head_dim);
            }
            kernels_->finish(into, split->tile, split->kv_head, shape, heads_out_.get());
        }
    });
}

void Decoder::logits(const Step& step, int thread) {
    const Config& c = config_;
    bool quantize = quantized(head_->format);
    team_.each(step.wanted, team_.grain(step.wanted), [&](int begin, int end) {
        for (int row = begin; row < end; ++row) {
            kernels_->prepare(hidden_in_, row, x_.get() + step.logit_rows[row] * c.hidden, norm_.data(), c.rms_eps,
                              quantize);
        }
    });
    matmul(*head_, hidden_in_, step.wanted, {Finish::store, step.logits, c.vocab, nullptr}, thread);
}

void Decoder::prepare(Activations& to, const float* x, int rows, const float* weight, const Matrix& next) {
    bool quantize = quantized(next.format);
    team_.each(rows, team_.grain(rows), [&](int begin, int end) {
        for (int row = begin; row < end; ++row) {
            kernels_->prepare(to, row, x + static_cast<std::size_t>(row) * to.inputs, weight, config_.rms_eps, quantize);
        }
    });
}

void Decoder::matmul(const Matrix& weights, const Activations& x, int rows, const Target& target, int thread) {
    int grain = team_.grain(weights.panels, target.finish == Finish::silu_mul ? 2 : 1);
    team_.each(weights.panels, grain, [&](int begin, int end) {
        kernels_->matmul(weights, x, rows, begin, end, target, scratch_[thread].open.get());
    });
}

Partial Decoder::partial(float* memory) const {
    return {memory, memory + lines_max_, memory + 2 * lines_max_};
}

const Kernels& kernels_named(const std::string& name) {
    for (const Kernels* const* known = available_kernels(); *known; ++known)
        if (name == (*known)->name) return **known;
    throw std::invalid_argument("kernels '" + name + "' cannot run on this machine");
}

const Kernels* const* available_kernels() {
    static const std::vector<const Kernels*> found = [] {
        std::vector<const Kernels*> list;
#if defined(__x86_64__)
        __builtin_cpu_init();
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
            __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vnni")) {
            list.push_back(&avx512_kernels);
        }
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
            list.push_back(&avx2_kernels);
#endif
        list.push_back(nullptr);
        return list;
    }();
    return found.data();
}

}  // namespace firstlight
