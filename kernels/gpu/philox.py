"""Random bits and Gumbel noise of ids, the same as in `kernels.reference.sampling` to the bit."""

import triton
import triton.language as tl


@triton.jit
def noise_bits(first_counter, keys, COUNTERS: tl.constexpr):
    """uint32 [4 · COUNTERS]: bits of the ids from 4 · first_counter on; `keys` → int64 [4].

    Philox-4x32-10 (Salmon et al., 2011) of (id >> 2, position, choice, 0) under the seed's halves;
    id & 3 says which of the four words is an id's.
    """
    k0, k1 = tl.load(keys).to(tl.uint32), tl.load(keys + 1).to(tl.uint32)
    a = (first_counter + tl.arange(0, COUNTERS)).to(tl.uint32)
    b = tl.zeros([COUNTERS], tl.uint32) + tl.load(keys + 2).to(tl.uint32)
    c = tl.zeros([COUNTERS], tl.uint32) + tl.load(keys + 3).to(tl.uint32)
    d = tl.zeros([COUNTERS], tl.uint32)
    m0 = tl.full([COUNTERS], 0xD2511F53, tl.uint32)
    m1 = tl.full([COUNTERS], 0xCD9E8D57, tl.uint32)
    w0, w1 = tl.full([], 0x9E3779B9, tl.uint32), tl.full([], 0xBB67AE85, tl.uint32)
    for _ in tl.static_range(10):
        high, low = tl.umulhi(a, m0), a * m0
        a, b = tl.umulhi(c, m1) ^ b ^ k0, c * m1
        c, d = high ^ d ^ k1, low
        k0 += w0
        k1 += w1
    return tl.interleave(tl.interleave(a, c), tl.interleave(b, d))


@triton.jit
def gumbel(bits):
    """float32: −log(−log(1 − u)), u = (bits + ½) / 2³², in float64 and rounded once."""
    rest = (4294967295.5 - bits.to(tl.float64)) * 2.3283064365386963e-10
    return (-tl.log(-tl.log(rest))).to(tl.float32)
