// The kernels of one instruction set, as a table that is picked at run time.
//
// Each works on a range of rows or of panels and knows no threads. What makes a row's bits its own:
// every sum runs over one row alone, in an order that depends on the model's shape only; how many
// rows share a pass changes which registers hold the sums, never what is added to what.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace firstlight {

// Rows as a matrix wants them. For quantized weights: signed bytes with a scale a group of 32, and
// the group's sum; else floats.
struct Activations {
    Aligned<float> values;       // [rows, inputs]
    Aligned<std::int8_t> codes;  // [rows, inputs]
    Aligned<float> scales;       // [rows, groups]; not a number where a value is not finite
    Aligned<std::int32_t> sums;  // [rows, groups]: of the codes
    Aligned<float> scaled_sums;  // [rows, groups]: sum · scale
    int inputs = 0;

    void reserve(int rows, int inputs);
};

enum class Finish {
    store,     // out = x·Wᵀ (+ bias)
    add,       // out += x·Wᵀ
    silu_mul,  // out = SiLU(even panel) · (the odd panel after it)
};

struct Target {
    Finish finish;
    float* out;
    int width;          // floats a row of `out`
    const float* bias;  // [panels · 16] or null
};

constexpr int kBlock = 16;   // tokens a block of keys and values
constexpr int kChunk = 256;  // key positions that share one softmax
constexpr int kScoreRows = 16;  // no kernels take more rows at once
constexpr int kOpenGroup = 16 * kGroup + 2 * 4 * 16;  // bytes: codes of a q4 group, its scales and minima as floats

// What a product of so many inputs needs beside its operands: two open panels.
constexpr std::size_t open_bytes(int inputs) { return std::size_t{2} * (inputs / kGroup + 1) * kOpenGroup; }

struct Shape {
    int heads, kv_heads, head_dim;
    int group() const { return heads / kv_heads; }
    int row_heads() const { return heads + 2 * kv_heads; }
};

// Keys and values of one layer, as halves. Keys are [blocks, kv_heads, head_dim, 16]: a lane is a
// token; values are [blocks, kv_heads, 16, head_dim].
struct Pages {
    std::uint16_t* keys;
    std::uint16_t* values;
    std::size_t head_size;   // halves of one head of one block
    std::size_t block_size;  // halves of one block
};

// Some tokens of one sequence, seen by one key/value head.
struct Tile {
    const std::int32_t* table;
    int first_row;       // of the step
    int tokens;
    int first_position;  // absolute, of the first token
};

// The softmax of one row over the chunks so far: Σ exp(s − most), and Σ exp(s − most) · v.
struct Partial {
    float* most;
    float* total;
    float* sums;  // [rows, head_dim]
};

// Philox-4x32-10: id i has word i % 4 of counter (i / 4, position, choice, 0).
struct Noise {
    static constexpr int kRounds = 10;
    static constexpr std::uint32_t kMultipliers[2] = {0xD2511F53, 0xCD9E8D57}, kWeyl[2] = {0x9E3779B9, 0xBB67AE85};
    std::uint32_t key[2], position, choice;
};

struct Kernels {
    const char* name;

    // x · weight / √(mean(x²) + eps) of row `row`; a null weight leaves out the norm.
    void (*prepare)(Activations& to, int row, const float* x, const float* weight, float eps,
                    bool quantize);
    void (*norm)(float* x, const float* weight, int size, float eps);
    // `open` is scratch of `open_bytes(x.inputs)`, aligned.
    void (*matmul)(const Matrix& weights, const Activations& x, int rows, int first_panel,
                   int end_panel, const Target& target, std::uint8_t* open);
    // Turns queries and keys of a row in place, and puts keys and values where they belong.
    void (*rotate_and_write)(float* row, const float* cosine, const float* sine, const Shape& shape,
                             const Pages& pages, int block, int offset);
    // One chunk of keys: `scores` is scratch for kScoreRows rows of kChunk floats.
    void (*attend)(const float* rows, const Tile& tile, int kv_head, int chunk, const Shape& shape,
                   const Pages& pages, float* scores, const Partial& to);
    // `into` becomes what both chunks together are, `other` being the later one.
    void (*merge)(const Partial& into, const Partial& other, int rows, int head_dim);
    void (*finish)(const Partial& sums, const Tile& tile, int kv_head, const Shape& shape,
                   float* out);

    // Of sampling: see sampling.inl.
    int (*largest)(const float* values, int count);
    float (*temper)(const float* from, float* to, int count, float temperature);
    int (*first)(const float* values, int count, float edge);
    // Over values that are padded to a multiple of 16 with −∞:
    int (*above)(const float* values, int count, float edge, std::int32_t* ids);
    double (*weigh)(const float* values, int count, float peak, double* to);
    int (*likely)(const float* values, int count, float floor, float bound, const Noise& noise, std::int32_t* ids,
                  std::uint32_t* bits_of_ids);
};

// Those that this machine can run, the fastest first; ends with null.
const Kernels* const* available_kernels();
// Throws std::invalid_argument if they are unknown, or this machine cannot run them.
const Kernels& kernels_named(const std::string& name);
#if defined(__x86_64__)
extern const Kernels avx2_kernels, avx512_kernels;
#endif

}  // namespace firstlight
