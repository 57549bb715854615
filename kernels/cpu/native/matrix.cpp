#include "matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace firstlight {

namespace {

constexpr int kSteps = kGroup / 4;
constexpr std::size_t kQ4Bytes = 320, kQ8Bytes = 544;

std::size_t group_bytes(Format format) { return format == Format::q4 ? kQ4Bytes : kQ8Bytes; }

bool finite(std::uint16_t half) { return (half & 0x7c00) != 0x7c00; }

[[noreturn]] void refuse(Format format, int output) {
    throw std::invalid_argument("output " + std::to_string(output) + " has weights that are not finite as " +
                                name_of(format));
}

// Writes one output's codes and scale into its lane of a group.
void put_group(Format format, std::uint8_t* group, int lane, const std::uint8_t* codes,
               std::uint16_t scale, std::uint16_t minimum) {
    auto* halves = reinterpret_cast<std::uint16_t*>(group + (format == Format::q4 ? 256 : 512));
    halves[lane] = scale;
    if (format == Format::q8) {
        for (int k = 0; k < kGroup; ++k) group[(k / 4 * kLanes + lane) * 4 + k % 4] = codes[k];
        return;
    }
    halves[kLanes + lane] = minimum;
    for (int step = 0; step < kSteps; ++step) {
        for (int j = 0; j < 4; ++j) {
            std::uint8_t& byte = group[(step / 2 * kLanes + lane) * 4 + j];
            std::uint8_t code = codes[step * 4 + j];
            byte = step % 2 ? (byte & 0x0f) | (code << 4) : (byte & 0xf0) | code;
        }
    }
}

struct Group {
    std::uint8_t codes[kGroup];
    std::uint16_t scale, minimum;
};

Group quantize_q4(const float* values) {
    auto [low, high] = std::minmax_element(values, values + kGroup);
    Group group{};
    group.minimum = float_to_half(*low);
    float minimum = half_to_float(group.minimum);
    group.scale = float_to_half((*high - minimum) / 15.0f);
    float scale = half_to_float(group.scale), inverse = scale ? 1.0f / scale : 0.0f;
    for (int k = 0; k < kGroup; ++k) {
        float code = std::nearbyint((values[k] - minimum) * inverse);
        group.codes[k] = static_cast<std::uint8_t>(std::clamp(code, 0.0f, 15.0f));
    }
    return group;
}

Group quantize_q8(const float* values) {
    float most = 0;
    for (int k = 0; k < kGroup; ++k) most = std::max(most, std::fabs(values[k]));
    Group group{};
    group.scale = float_to_half(most / 127.0f);
    float scale = half_to_float(group.scale), inverse = scale ? 1.0f / scale : 0.0f;
    for (int k = 0; k < kGroup; ++k) {
        float code = std::nearbyint(values[k] * inverse);
        group.codes[k] = static_cast<std::uint8_t>(std::clamp(code, -127.0f, 127.0f) + 128.0f);
    }
    return group;
}

// A block of 32 weights as GGUF stores it: a scale, for Q4_1 a minimum, then the codes; low halves
// are the first 16 inputs, high ones the others.
Group read_block(const std::string& type, const std::uint8_t* block) {
    Group group{};
    std::memcpy(&group.scale, block, 2);
    if (type == "Q8_0") {
        for (int k = 0; k < kGroup; ++k) group.codes[k] = block[2 + k] ^ 0x80;
        return group;
    }
    const std::uint8_t* codes = block + 2;
    if (type == "Q4_1") {
        std::memcpy(&group.minimum, block + 2, 2);
        codes += 2;
    } else {
        group.minimum = float_to_half(-8.0f * half_to_float(group.scale));
    }
    for (int k = 0; k < kGroup / 2; ++k) {
        group.codes[k] = codes[k] & 0x0f;
        group.codes[k + kGroup / 2] = codes[k] >> 4;
    }
    return group;
}

}  // namespace

Format format_named(const std::string& name) {
    for (Format format : {Format::q4, Format::q8, Format::bf16, Format::f32})
        if (name == name_of(format)) return format;
    throw std::invalid_argument("weight format '" + name + "' is unknown");
}

std::size_t block_bytes(const std::string& type) {
    return type == "Q4_0" ? 18 : type == "Q4_1" ? 20 : type == "Q8_0" ? 34 : 0;
}

const char* name_of(Format format) {
    switch (format) {
        case Format::q4: return "q4";
        case Format::q8: return "q8";
        case Format::bf16: return "bf16";
        default: return "f32";
    }
}

Matrix::Matrix(Format format, int outputs, int inputs)
    : format(format), outputs(outputs), inputs(inputs), panels((outputs + kLanes - 1) / kLanes) {
    if (outputs < 1 || inputs < 1) throw std::invalid_argument("a matrix without weights");
    if (quantized(format)) {
        if (inputs % kGroup) {
            throw std::invalid_argument(std::to_string(inputs) + " inputs are not a multiple of 32, "
                                        "which format " + name_of(format) + " needs");
        }
        panel_bytes = inputs / kGroup * group_bytes(format);
    } else {
        if (inputs % kLanes) {
            throw std::invalid_argument(std::to_string(inputs) + " inputs are not a multiple of 16, "
                                        "which format " + name_of(format) + " needs");
        }
        panel_bytes = static_cast<std::size_t>(inputs) * kLanes * (format == Format::bf16 ? 2 : 4);
    }
    data = lasting_zeros(panels * panel_bytes);
}

void Matrix::pack_blocks(const std::string& type, const std::uint8_t* rows) {
    std::size_t block = block_bytes(type);
    if (block == 0 || (type == "Q8_0") != (format == Format::q8) || !quantized(format)) {
        throw std::invalid_argument("blocks of type '" + type + "' do not fit format " +
                                    name_of(format));
    }
    int groups = inputs / kGroup;
    for (int output = 0; output < outputs; ++output) {
        std::uint8_t* at = data.get() + output / kLanes * panel_bytes;
        for (int g = 0; g < groups; ++g, rows += block, at += group_bytes(format)) {
            Group group = read_block(type, rows);
            if (!finite(group.scale) || !finite(group.minimum)) refuse(format, output);
            put_group(format, at, output % kLanes, group.codes, group.scale, group.minimum);
        }
    }
}

void Matrix::pack_floats(const float* rows) {
    for (int output = 0; output < outputs; ++output, rows += inputs) {
        std::uint8_t* at = data.get() + output / kLanes * panel_bytes;
        int lane = output % kLanes;
        if (quantized(format)) {
            for (int k = 0; k < inputs; k += kGroup, at += group_bytes(format)) {
                Group group = format == Format::q4 ? quantize_q4(rows + k) : quantize_q8(rows + k);
                if (!finite(group.scale) || !finite(group.minimum)) refuse(format, output);
                put_group(format, at, lane, group.codes, group.scale, group.minimum);
            }
        } else if (format == Format::f32) {
            for (int k = 0; k < inputs; ++k)
                reinterpret_cast<float*>(at)[k * kLanes + lane] = rows[k];
        } else {
            for (int k = 0; k < inputs; ++k) {
                std::uint32_t bits;
                std::memcpy(&bits, rows + k, 4);
                bits += 0x7fff + ((bits >> 16) & 1);  // to nearest even
                if ((bits & 0x7f800000) == 0x7f800000) refuse(format, output);
                reinterpret_cast<std::uint16_t*>(at)[k * kLanes + lane] = bits >> 16;
            }
        }
    }
}

void Matrix::row(int output, float* values) const {
    const std::uint8_t* at = panel(output / kLanes);
    int lane = output % kLanes;
    if (format == Format::f32) {
        for (int k = 0; k < inputs; ++k)
            values[k] = reinterpret_cast<const float*>(at)[k * kLanes + lane];
        return;
    }
    if (format == Format::bf16) {
        for (int k = 0; k < inputs; ++k) {
            std::uint32_t bits = reinterpret_cast<const std::uint16_t*>(at)[k * kLanes + lane];
            bits <<= 16;
            std::memcpy(values + k, &bits, 4);
        }
        return;
    }
    for (int g = 0; g < inputs / kGroup; ++g, at += group_bytes(format), values += kGroup) {
        bool q4 = format == Format::q4;
        auto* halves = reinterpret_cast<const std::uint16_t*>(at + (q4 ? 256 : 512));
        float scale = half_to_float(halves[lane]);
        float minimum = q4 ? half_to_float(halves[kLanes + lane]) : -128.0f * scale;
        for (int k = 0; k < kGroup; ++k) {
            int step = k / 4;
            std::uint8_t code = q4 ? at[(step / 2 * kLanes + lane) * 4 + k % 4]
                                   : at[(step * kLanes + lane) * 4 + k % 4];
            if (q4) code = step % 2 ? code >> 4 : code & 0x0f;
            values[k] = scale * code + minimum;
        }
    }
}

float half_to_float(std::uint16_t half) {
    std::uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 31, rest = half & 1023;
    float value;
    if (exponent == 0) {
        value = std::ldexp(static_cast<float>(rest), -24);
    } else if (exponent == 31) {
        value = rest ? NAN : INFINITY;
    } else {
        value = std::ldexp(static_cast<float>(rest | 1024), static_cast<int>(exponent) - 25);
    }
    return sign ? -value : value;
}

std::uint16_t float_to_half(float value) {
    std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    float size = std::fabs(value);
    if (!(size < 65520.0f)) return sign | 0x7c00;  // beyond the largest half, rounded
    if (size < 6.103515625e-05f) {  // below 2⁻¹⁴: no normal half
        return sign | static_cast<std::uint16_t>(std::nearbyint(std::ldexp(size, 24)));
    }
    int exponent;
    std::frexp(size, &exponent);  // size = [½, 1) · 2^exponent
    auto rest = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(size, 11 - exponent)));
    return sign | static_cast<std::uint16_t>(((exponent + 13) << 10) + rest);
}

}  // namespace firstlight
