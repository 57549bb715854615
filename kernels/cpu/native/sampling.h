// The next id from logits, by the rule of shared/sampling.py and without sorting a vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels.h"

namespace firstlight {

// One id to choose: everything but the logits. Penalties look at ids in lists (see Lists), of which
// the next so many are its own.
struct Draw {
    std::uint64_t seed;
    double top_p, min_p;
    std::int64_t top_k;   // 0: all
    std::uint32_t position, choice;
    float temperature;    // 0: the largest logit, without noise
    float repetition, presence, frequency;
    std::uint32_t biases, seen, counted;
};

// What all draws look at, draw after draw.
struct Lists {
    const std::int64_t* bias_ids;
    const float* biases;
    const std::int64_t* seen;     // distinct ids of a draw's prompt and answer
    const std::int64_t* counted;  // distinct ids of its answer
    const float* counts;          // how often each of them occurs

    Lists after(const Draw& draw) const {
        return {bias_ids + draw.biases, biases + draw.biases, seen + draw.seen, counted + draw.counted,
                counts + draw.counted};
    }
};

constexpr std::int64_t kNotFinite = -1;    // a raw logit is not finite
constexpr std::int64_t kNoneIsLeft = -2;   // no largest logit, or no id passes the filters

// Samples rows, one after the other; holds what one row needs.
class Sampler {
public:
    Sampler(const Kernels& kernels, int vocab);

    // An id, or one of the above.
    std::int64_t sample(const float* logits, const Draw& draw, const Lists& lists);

private:
    struct Candidate {
        float value;
        std::int32_t id;
        double weight;
    };
    static bool before(const Candidate& a, const Candidate& b) {  // the order of all filters
        return a.value > b.value || (a.value == b.value && a.id < b.id);
    }

    bool penalize(const float* logits, const Draw& draw, const Lists& lists);
    void filter(const Draw& draw, float peak);
    double gather(double edge, float peak);
    template <class Enough>
    void widen(float peak, const Enough& enough);
    void cut_to_nucleus(double target);
    std::int64_t noisiest(const Draw& draw, float peak, bool all);
    void consider(std::int32_t id, std::uint32_t bits);

    const Kernels& kernels_;
    const int vocab_;
    Aligned<float> values_, few_;  // [vocab, padded]
    Aligned<double> weights_;
    Aligned<std::int32_t> ids_;
    Aligned<std::uint32_t> bits_;
    std::vector<Candidate> left_;  // what filters leave
    float best_score_ = 0;
    std::int32_t best_ = -1;
};

}  // namespace firstlight
