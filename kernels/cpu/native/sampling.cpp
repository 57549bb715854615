#include "sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace firstlight {

namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();
constexpr int kDirect = 256;             // up to so many ids the noise of all of them is taken
constexpr int kSorted = 512;             // up to so many ids top-p sorts
constexpr double kFirstDepth = 8.0;      // below the peak, where filters look at first
constexpr double kLastDepth = 64.0;      // then they look at all
constexpr float kNoiseMax = 22.88f;      // no G is larger: bits = 0 gives 22.87

std::uint32_t noise_bits(std::int32_t id, const Noise& noise) {
    std::uint32_t a = static_cast<std::uint32_t>(id) / 4, b = noise.position, c = noise.choice, d = 0;
    std::uint32_t k0 = noise.key[0], k1 = noise.key[1];
    for (int round = 0; round < Noise::kRounds; ++round) {
        std::uint64_t high = std::uint64_t{Noise::kMultipliers[0]} * a, low = std::uint64_t{Noise::kMultipliers[1]} * c;
        a = static_cast<std::uint32_t>(low >> 32) ^ b ^ k0;
        c = static_cast<std::uint32_t>(high >> 32) ^ d ^ k1;
        b = static_cast<std::uint32_t>(low);
        d = static_cast<std::uint32_t>(high);
        k0 += Noise::kWeyl[0];
        k1 += Noise::kWeyl[1];
    }
    const std::uint32_t words[4] = {a, b, c, d};
    return words[id % 4];
}

// In float64 and rounded once, so that it does not depend on whose logarithm it was.
float gumbel(std::uint32_t bits) {
    double u = (bits + 0.5) * 0x1p-32;
    return static_cast<float>(-std::log(-std::log1p(-u)));
}

Noise noise_of(const Draw& draw) {
    return {{static_cast<std::uint32_t>(draw.seed), static_cast<std::uint32_t>(draw.seed >> 32)}, draw.position, draw.choice};
}

}  // namespace

Sampler::Sampler(const Kernels& kernels, int vocab) : kernels_(kernels), vocab_(vocab) {
    std::size_t padded = (static_cast<std::size_t>(vocab) + kLanes - 1) / kLanes * kLanes;
    values_ = aligned<float>(padded);
    few_ = aligned<float>(padded);
    weights_ = aligned<double>(padded);
    ids_ = aligned<std::int32_t>(padded);
    bits_ = aligned<std::uint32_t>(padded);
    std::fill(values_.get() + vocab, values_.get() + padded, kNever);
    left_.reserve(vocab);
}

std::int64_t Sampler::sample(const float* logits, const Draw& draw, const Lists& lists) {
    int largest = kernels_.largest(logits, vocab_);
    if (largest < 0) return kNotFinite;
    bool greedy = draw.temperature == 0.0f, penalized = penalize(logits, draw, lists);
    if (greedy && !penalized) return largest;
    const float* from = penalized ? values_.get() : logits;
    float peak = kernels_.temper(from, values_.get(), vocab_, greedy ? 1.0f : draw.temperature);
    if (greedy) return kernels_.first(values_.get(), vocab_, peak);
    if (!std::isfinite(peak)) return kNoneIsLeft;
    bool all = draw.min_p <= 0.0 && (draw.top_k <= 0 || draw.top_k >= vocab_) && draw.top_p >= 1.0;
    if (!all) filter(draw, peak);
    return !all && left_.empty() ? kNoneIsLeft : noisiest(draw, peak, all);
}

// Puts adjusted logits into `values_`, if there is anything to adjust.
bool Sampler::penalize(const float* logits, const Draw& draw, const Lists& lists) {
    if (!draw.biases && !draw.seen && !draw.counted) return false;
    std::copy(logits, logits + vocab_, values_.get());
    for (std::uint32_t i = 0; i < draw.biases; ++i) values_[lists.bias_ids[i]] += lists.biases[i];
    for (std::uint32_t i = 0; i < draw.seen; ++i) {
        float& held = values_[lists.seen[i]];
        held = held < 0 ? held * draw.repetition : held / draw.repetition;
    }
    for (std::uint32_t i = 0; i < draw.counted; ++i) {
        float& held = values_[lists.counted[i]];
        held -= draw.frequency * lists.counts[i];
        held -= draw.presence;
    }
    return true;
}

// What min-p, then top-k, then top-p leave. Sums of many weights run in another order than numpy's,
// so that the border of top-p can be another where the two sides differ by an ulp of float64.
void Sampler::filter(const Draw& draw, float peak) {
    bool limited = draw.top_k > 0 && draw.top_k < vocab_;
    double total = 0;
    if (draw.min_p > 0.0) {
        double edge = peak + std::log(draw.min_p);
        gather(edge - 1e-6 * (1 + std::abs(peak) + std::abs(edge)), peak);
        std::erase_if(left_, [&](const Candidate& one) { return one.weight < draw.min_p; });
    } else if (limited) {
        widen(peak, [&](double) { return static_cast<std::int64_t>(left_.size()) >= draw.top_k; });
    } else {
        total = kernels_.weigh(values_.get(), vocab_, peak, nullptr);
        widen(peak, [&](double sum) { return sum >= draw.top_p * total; });
    }
    if (limited && draw.top_k < static_cast<std::int64_t>(left_.size())) {
        std::nth_element(left_.begin(), left_.begin() + draw.top_k, left_.end(), before);
        left_.resize(draw.top_k);
    }
    if (draw.top_p >= 1.0) return;
    if (limited || draw.min_p > 0.0) {
        auto add = [](double sum, const Candidate& one) { return sum + one.weight; };
        total = std::accumulate(left_.begin(), left_.end(), 0.0, add);
    }
    cut_to_nucleus(draw.top_p * total);
}

// Candidates of at least `edge`, by ascending id; returns the sum of their weights.
double Sampler::gather(double edge, float peak) {
    int count = kernels_.above(values_.get(), vocab_, static_cast<float>(edge), ids_.get());
    int padded = (count + kLanes - 1) / kLanes * kLanes;
    for (int i = 0; i < count; ++i) few_[i] = values_[ids_[i]];
    std::fill(few_.get() + count, few_.get() + padded, kNever);
    double sum = kernels_.weigh(few_.get(), count, peak, weights_.get());
    left_.resize(count);
    for (int i = 0; i < count; ++i) left_[i] = {few_[i], ids_[i], weights_[i]};
    return sum;
}

// Candidates down to a depth that is enough, or all.
template <class Enough>
void Sampler::widen(float peak, const Enough& enough) {
    for (double depth = kFirstDepth; depth <= kLastDepth; depth *= 2)
        if (enough(gather(peak - depth, peak))) return;
    gather(kNever, peak);
}

// The shortest front by `before` whose weights reach `target`; all if none does.
void Sampler::cut_to_nucleus(double target) {
    auto first = left_.begin(), end = left_.end();
    double sum = 0;
    while (end - first > kSorted) {  // halve where the border must be
        auto middle = first + (end - first) / 2;
        std::nth_element(first, middle, end, before);
        double front = sum;
        for (auto one = first; one != middle; ++one) front += one->weight;
        if (front >= target) {
            end = middle;
        } else {
            sum = front;
            first = middle;
        }
    }
    std::sort(first, end, before);
    for (; first != end; ++first) {
        sum += first->weight;
        if (sum >= target) {
            left_.resize(first + 1 - left_.begin());
            return;
        }
    }
    left_.resize(end - left_.begin());
}

// The largest value + G of what is left. That of ids near the peak bounds what noise another id
// would need: as G ≤ −log u, it needs u ≤ exp(value − bound), up to the rounding of sums in float32.
// The random bits tell which ids could have that much, and only those get a logarithm.
std::int64_t Sampler::noisiest(const Draw& draw, float peak, bool all) {
    Noise noise = noise_of(draw);
    best_ = -1;
    if (!all && left_.size() <= kDirect) {
        for (const Candidate& one : left_) consider(one.id, noise_bits(one.id, noise));
        return best_;
    }
    Candidate last{kNever, vocab_, 0};
    if (!all) last = *std::max_element(left_.begin(), left_.end(), before);
    auto kept = [&](std::int32_t id) { return !before(last, {values_[id], id, 0}); };
    int near = kernels_.above(values_.get(), vocab_, std::max(peak - 1.0f, last.value), ids_.get());
    for (int i = 0; i < std::min(near, kDirect); ++i)
        if (kept(ids_[i])) consider(ids_[i], noise_bits(ids_[i], noise));
    float slack = 1e-3f + 1e-6f * std::max(std::abs(best_score_), std::abs(peak));
    float bound = best_score_ - slack - 1e-3f;
    int count = kernels_.likely(values_.get(), vocab_, std::max(bound - kNoiseMax, last.value), bound, noise, ids_.get(),
                                bits_.get());
    for (int i = 0; i < count; ++i)
        if (kept(ids_[i])) consider(ids_[i], bits_[i]);
    return best_;
}

void Sampler::consider(std::int32_t id, std::uint32_t bits) {
    float score = values_[id] + gumbel(bits);
    if (best_ < 0 || score > best_score_ || (score == best_score_ && id < best_)) {
        best_score_ = score;
        best_ = id;
    }
}

}  // namespace firstlight
