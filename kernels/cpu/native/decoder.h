// A decoder of the Llama family over paged keys and values: one call runs one step.
#pragma once

#include <memory>
#include <vector>

#include "kernels.h"
#include "sampling.h"
#include "threads.h"

namespace firstlight {

using Weights = std::shared_ptr<const Matrix>;
using Numbers = std::vector<float>;

struct Config {
    int heads, kv_heads, head_dim, hidden, intermediate, vocab;
    float rms_eps;
    std::vector<double> frequencies;  // of rotary embedding, one for each pair of values of a head
};

struct Layer {
    Numbers attention_norm;
    Weights qkv;
    Numbers qkv_bias;        // empty, or one an output
    Numbers q_norm, k_norm;  // empty, or one for each value of a head
    Weights output;
    Numbers mlp_norm;
    Weights gate_up;  // panels of the gate and of the up projection in turn
    Weights down;
};

struct Span {
    std::int32_t first_row, rows, context;  // tokens visible to the last row, itself included
};

// One step, as arrays that the caller keeps alive.
struct Step {
    int rows;
    const std::int64_t* ids;
    const std::int64_t* positions;
    const std::int64_t* slots;  // block · 16 + offset
    int spans;
    const Span* span;
    const std::int32_t* tables;         // block tables one after the other
    const std::int32_t* table_offsets;  // [spans + 1]
    int wanted;
    const std::int64_t* logit_rows;
    std::uint16_t* pages;  // [layers, 2, blocks, kv_heads, 16 · head_dim]
    int blocks;
    float* logits;  // [wanted, vocab]
};

class Decoder {
public:
    // Throws std::invalid_argument if the kernels cannot run this shape or are unknown.
    Decoder(const std::string& kernels, int threads, Config config);

    void add(Layer layer);
    void end(Weights embedding, Numbers norm, Weights head);

    // Writes keys and values of all rows, then the logits that are wanted. Throws
    // std::invalid_argument, before anything is written, for a step that contradicts itself.
    void run(const Step& step);

    // Ids [rows] by logits [rows, vocab] and as many draws; see Sampler::sample. Throws
    // std::invalid_argument if a list names an id outside of the vocabulary.
    void sample(const float* logits, const Draw* draws, int rows, const Lists& lists, std::int64_t* ids);

private:
    struct Task {
        Tile tile;
        int kv_head, first_chunk, end_chunk, slot;  // slot: of the partial sums, or −1: finish alone
    };
    struct Split {
        Tile tile;
        int kv_head, first_slot, chunks;
    };
    struct Scratch {  // of one thread
        Aligned<float> scores, here, other;
        Aligned<std::uint8_t> open;
    };

    void check(const Step& step) const;
    void plan(const Step& step);
    void reserve(const Step& step);
    void work(const Step& step, int thread);
    void layer(const Step& step, int index, int thread);
    void attention(const Pages& pages, int thread);
    void logits(const Step& step, int thread);
    void prepare(Activations& to, const float* x, int rows, const float* weight, const Matrix& next);
    void matmul(const Matrix& weights, const Activations& x, int rows, const Target& target, int thread);
    Partial partial(float* memory) const;
    Shape shape() const { return {config_.heads, config_.kv_heads, config_.head_dim}; }

    const Kernels* kernels_;
    Config config_;
    Team team_;
    std::vector<Layer> layers_;
    Weights embedding_, head_;
    Numbers norm_;
    int lines_max_;           // rows of a tile of attention
    std::size_t part_;        // floats of one partial softmax
    std::vector<Scratch> scratch_;
    std::vector<Sampler> samplers_;  // one a thread, made when they are first needed
    std::vector<Task> tasks_;
    std::vector<Split> splits_;
    Aligned<float> x_, rows_, heads_out_, wide_, cosine_, sine_, parts_;
    int rows_reserved_ = 0;
    std::size_t parts_reserved_ = 0;
    Activations hidden_in_, heads_in_, wide_in_;
};

}  // namespace firstlight
