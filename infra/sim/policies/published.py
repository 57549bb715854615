"""All the rules of others that the simulator can run, in the order of its table."""

from firstlight.infra.sim.policies.aibrix import AIBrix
from firstlight.infra.sim.policies.dynamo import Dynamo
from firstlight.infra.sim.policies.gorgo import Gorgo
from firstlight.infra.sim.policies.least_latency import LeastLatency
from firstlight.infra.sim.policies.least_request import LeastRequest
from firstlight.infra.sim.policies.llm_d import LlmDApproximate, LlmDPrecise
from firstlight.infra.sim.policies.mooncake import Mooncake
from firstlight.infra.sim.policies.p2c import P2C
from firstlight.infra.sim.policies.peak_ewma import PeakEwma
from firstlight.infra.sim.policies.policy import Policy
from firstlight.infra.sim.policies.production_stack import BySession, KvAware, PrefixAware
from firstlight.infra.sim.policies.round_robin import RoundRobin
from firstlight.infra.sim.policies.sglang import CacheAware
from firstlight.infra.sim.policies.stargate import PowerOfN, WaitAndWiden

POLICIES: tuple[type[Policy], ...] = (
    RoundRobin,
    LeastRequest,
    P2C,
    PeakEwma,
    LeastLatency,
    Dynamo,
    LlmDPrecise,
    LlmDApproximate,
    AIBrix,
    CacheAware,
    PrefixAware,
    KvAware,
    BySession,
    Mooncake,
    PowerOfN,
    WaitAndWiden,
    Gorgo,
)
