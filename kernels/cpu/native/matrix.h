// Weights as the kernels read them: panels of 16 outputs, so that a vector lane is an output.
//
// A panel of block-quantized weights is a run of groups of 32 inputs. In a group the codes come
// first, four inputs of an output side by side (what one multiply-add of bytes consumes), output
// after output, step after step; then the scales of the 16 outputs, and for q4 their minima:
//
//     q4   code 0…15,   value = scale · code + minimum       256 + 32 + 32 bytes a group
//     q8   code 0…255,  value = scale · (code − 128)         512 + 32 bytes a group
//
// Two steps of q4 share their bytes: the first is the low half. Scales and minima are IEEE halves,
// as in the GGUF types Q4_0, Q4_1 and Q8_0, which are repacked without loss. Panels of bf16 and f32
// have no groups: input after input, 16 outputs each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "memory.h"

namespace firstlight {

constexpr int kLanes = 16;
constexpr int kGroup = 32;

enum class Format { q4, q8, bf16, f32 };

Format format_named(const std::string& name);
const char* name_of(Format format);
std::size_t block_bytes(const std::string& type);  // of 32 weights in a GGUF file; 0: unknown
inline bool quantized(Format format) { return format == Format::q4 || format == Format::q8; }

struct Matrix {
    Format format;
    int outputs;
    int inputs;
    int panels;  // ⌈outputs / 16⌉; the outputs beyond are zeros
    std::size_t panel_bytes;
    Piece data;

    Matrix(Format format, int outputs, int inputs);
    const std::uint8_t* panel(int index) const { return data.get() + index * panel_bytes; }
    std::size_t bytes() const { return panels * panel_bytes; }

    // One output's weights as floats.
    void row(int output, float* values) const;

    // Both throw std::invalid_argument for weights that the format cannot hold as finite values.
    // Fill from the rows [outputs, blocks of 32] of a GGUF type (Q4_0, Q4_1 → q4, Q8_0 → q8).
    void pack_blocks(const std::string& type, const std::uint8_t* rows);
    // Fill from float rows [outputs, inputs], quantized here if the format is.
    void pack_floats(const float* rows);
};

float half_to_float(std::uint16_t half);
std::uint16_t float_to_half(float value);  // to nearest even

}  // namespace firstlight
