"""Every metric of every role, declared here and nowhere else, in registries of our own.

Where the meaning is the same, names and labels are those of vLLM's engine (v1), so that dashboards
and autoscalers made for it work; ours begin `firstlight_`. Labels are bounded (role, region, model,
source, reason); an id, a node or a tenant is never one.

A core counts from a request's arrival there, an edge from its client's first byte: the names that
both have mean the two, and only a core's carry vLLM's label `engine` (always "0").
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

REGISTRY = CollectorRegistry()
"""What is only ours."""
ENGINE_REGISTRY = CollectorRegistry()
"""In vLLM's words, of a core."""
EDGE_REGISTRY = CollectorRegistry()
"""In vLLM's words, of an edge: what its clients see."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_LONG_SECONDS = (*_SECONDS, 120.0, 300.0, 600.0)
_SHORT_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.5, 1.0, 3.0)
_INSTANT_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
_TOKENS = (1, 8, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
_MODEL = ("model_name",)
_ENGINE = ("model_name", "engine")


def render() -> bytes:
    """All metrics of an edge or a load balancer in Prometheus' text format (`CONTENT_TYPE`)."""
    return generate_latest(REGISTRY) + generate_latest(EDGE_REGISTRY)


def render_core() -> bytes:
    """The same of a core."""
    return generate_latest(REGISTRY) + generate_latest(ENGINE_REGISTRY)


# A core's engine, in vLLM's words.

REQUESTS_RUNNING = Gauge(
    "vllm:num_requests_running",
    "Sequences that have a place, those whose client does not read included.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
REQUESTS_WAITING = Gauge(
    "vllm:num_requests_waiting",
    "Sequences that wait for a place, those that lost theirs included.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
KV_USAGE = Gauge(
    "vllm:kv_cache_usage_perc",
    "Share of KV blocks in use, 0 to 1.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
PREFIX_QUERIES = Counter(
    "vllm:prefix_cache_queries",
    "Prompt tokens looked up in the prefix cache, of requests that have their first id; ids that "
    "another core committed count as prompt.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
PREFIX_HITS = Counter(
    "vllm:prefix_cache_hits",
    "Prompt tokens found in it, from whichever tier; never ids that another core committed.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
PROMPT_TOKENS = Counter(
    "vllm:prompt_tokens",
    "Prompt tokens, cached ones too, of requests that have their first id; ids that another core "
    "committed count as prompt.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
GENERATION_TOKENS = Counter(
    "vllm:generation_tokens", "Tokens committed.", _ENGINE, registry=ENGINE_REGISTRY
)
PREEMPTIONS = Counter(
    "vllm:num_preemptions",
    "How often a sequence lost its place, to a more important one or for want of blocks.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
ENGINE_SUCCESS = Counter(
    "vllm:request_success",
    "Requests that ended without an error: stop, length, or abort if its edge cancelled it.",
    (*_ENGINE, "finished_reason"),
    registry=ENGINE_REGISTRY,
)
STEP_TOKENS = Histogram(
    "vllm:iteration_tokens_total",
    "Tokens of a step: prompt tokens computed, and ids committed.",
    _ENGINE,
    buckets=_TOKENS,
    registry=ENGINE_REGISTRY,
)
QUEUE_SECONDS = Histogram(
    "vllm:request_queue_time_seconds",
    "From arrival at the core to the first step.",
    _ENGINE,
    buckets=_SECONDS,
    registry=ENGINE_REGISTRY,
)
PREFILL_SECONDS = Histogram(
    "vllm:request_prefill_time_seconds",
    "From the first step to the first token.",
    _ENGINE,
    buckets=_SECONDS,
    registry=ENGINE_REGISTRY,
)
DECODE_SECONDS = Histogram(
    "vllm:request_decode_time_seconds",
    "From the first token to the last, of answers that the engine ended.",
    _ENGINE,
    buckets=_LONG_SECONDS,
    registry=ENGINE_REGISTRY,
)
ENGINE_TTFT_SECONDS = Histogram(
    "vllm:time_to_first_token_seconds",
    "From arrival at the core to the first token.",
    _ENGINE,
    buckets=_SECONDS,
    registry=ENGINE_REGISTRY,
)
ITL_SECONDS = Histogram(
    "vllm:inter_token_latency_seconds",
    "Between two commits of a sequence, however many tokens the later one brought.",
    _ENGINE,
    buckets=_SHORT_SECONDS,
    registry=ENGINE_REGISTRY,
)
ENGINE_E2E_SECONDS = Histogram(
    "vllm:e2e_request_latency_seconds",
    "From arrival at the core to the last token, of answers that the engine ended.",
    _ENGINE,
    buckets=_LONG_SECONDS,
    registry=ENGINE_REGISTRY,
)
DRAFTS = Counter(
    "vllm:spec_decode_num_drafts",
    "Drafts that were verified: one a sequence and step.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
DRAFT_TOKENS = Counter(
    "vllm:spec_decode_num_draft_tokens",
    "Drafted ids that were verified.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
ACCEPTED_TOKENS = Counter(
    "vllm:spec_decode_num_accepted_tokens",
    "Drafted ids that agreed.",
    _ENGINE,
    registry=ENGINE_REGISTRY,
)
ACCEPTED_TOKENS_PER_POS = Counter(
    "vllm:spec_decode_num_accepted_tokens_per_pos",
    "Drafted ids that agreed, by their place in the draft, from 0.",
    (*_ENGINE, "position"),
    registry=ENGINE_REGISTRY,
)

# The edge, in vLLM's words where a client's wait is meant.

TTFT_SECONDS = Histogram(
    "vllm:time_to_first_token_seconds",
    "From the request's first byte to the first token's.",
    _MODEL,
    buckets=_SECONDS,
    registry=EDGE_REGISTRY,
)
E2E_SECONDS = Histogram(
    "vllm:e2e_request_latency_seconds",
    "From the request's first byte to the answer's end.",
    _MODEL,
    buckets=_SECONDS,
    registry=EDGE_REGISTRY,
)
REQUEST_SUCCESS = Counter(
    "vllm:request_success",
    "Answers that ended well, by finish reason.",
    (*_MODEL, "finished_reason"),
    registry=EDGE_REGISTRY,
)

# Ours.

STEP_SECONDS = Histogram(
    "firstlight_step_seconds",
    "Time of one engine step.",
    _MODEL,
    buckets=_SHORT_SECONDS,
    registry=REGISTRY,
)
HINT_TOKENS = Counter(
    "firstlight_hint_tokens",
    "Hinted ids by source and fate: offered, verified, accepted of requests that are done; dropped "
    "if too many hints waited for the next step (these were never offered).",
    ("source", "fate"),
    registry=REGISTRY,
)
HTTP_REQUESTS = Counter(
    "firstlight_http_requests",
    "HTTP answers by protocol (h1, h2, h3), route and status.",
    ("protocol", "route", "status"),
    registry=REGISTRY,
)
REQUESTS_REFUSED = Counter(
    "firstlight_requests_refused",
    "Requests refused, by role and the error's kind.",
    ("role", "reason"),
    registry=REGISTRY,
)
ROUTES = Counter(
    "firstlight_routes",
    "Routing decisions by the chosen core's region and why.",
    ("region", "reason"),
    registry=REGISTRY,
)
ROUTE_PANICS = Counter(
    "firstlight_route_panics",
    "Routing decisions made while most cores are ejected, so that health is not believed.",
    registry=REGISTRY,
)
EJECTIONS = Counter(
    "firstlight_ejections",
    "Cores that this edge began to leave out for a while, because they failed it.",
    registry=REGISTRY,
)
ROUTE_TTFT_SECONDS = Histogram(
    "firstlight_route_expected_ttft_seconds",
    "Time to the first token that routing expected of the chosen core.",
    buckets=_SECONDS,
    registry=REGISTRY,
)
KV_TIER_BLOCKS = Counter(
    "firstlight_kv_tier_blocks",
    "Blocks that a tier which outlives the process was asked for or offered, by what became of it.",
    ("tier", "fate"),
    registry=REGISTRY,
)
MOVES = Counter(
    "firstlight_moves",
    "Requests that went on at another core, by why.",
    ("reason",),
    registry=REGISTRY,
)
KV_PLANS = Counter(
    "firstlight_kv_plans",
    "Prefixes that another tier or core had, by what was decided: recompute, fetch, split.",
    ("way",),
    registry=REGISTRY,
)
KV_LOADS = Counter(
    "firstlight_kv_loads",
    "Loads of prefixes by way and end: done, met, late, absent, broken, bad, busy.",
    ("way", "fate"),
    registry=REGISTRY,
)
KV_LOADED_BYTES = Counter(
    "firstlight_kv_loaded_bytes",
    "Bytes of KV that came from elsewhere, by tier: peer, disk.",
    ("tier",),
    registry=REGISTRY,
)
STREAMS_KEPT = Gauge(
    "firstlight_streams_kept", "Choices that a client can come back to.", registry=REGISTRY
)
STREAM_IDS_KEPT = Gauge(
    "firstlight_stream_ids_kept", "Ids kept for that, of prompts and answers.", registry=REGISTRY
)
STREAMS_GONE_ON = Counter(
    "firstlight_streams_gone_on",
    "Streams that a client went on with: here, by its key, by its ids, from the journal.",
    ("way",),
    registry=REGISTRY,
)
JOURNAL = Counter(
    "firstlight_journal_streams",
    "Streams written to the journal and read from it, by what became of it.",
    ("fate",),
    registry=REGISTRY,
)
LINKS = Gauge("firstlight_links", "Links between edges and this core that live.", registry=REGISTRY)
LINK_LOSSES = Counter(
    "firstlight_link_losses", "Links lost, by why.", ("reason",), registry=REGISTRY
)
LINK_BYTES = Counter(
    "firstlight_link_bytes", "Bytes of link frames.", ("direction",), registry=REGISTRY
)
LINK_FRAMES = Counter(
    "firstlight_link_frames", "Frames on links.", ("direction",), registry=REGISTRY
)
CONTROL_JOINED = Gauge(
    "firstlight_control_joined", "Control streams that live.", ("role",), registry=REGISTRY
)
CONTROL_LOSSES = Counter(
    "firstlight_control_losses", "Control streams that broke off.", ("role",), registry=REGISTRY
)
MESH_NODES = Gauge(
    "firstlight_mesh_nodes", "Nodes that live, as known here.", ("role",), registry=REGISTRY
)
MESH_REPORTS = Counter(
    "firstlight_mesh_reports",
    "Reports by what became of them: taken, stale, ignored, duplicate, refused.",
    ("fate",),
    registry=REGISTRY,
)
MESH_IGNORED = Counter(
    "firstlight_mesh_ignored",
    "Words of nodes that no decision was made with, by who ignored them and why: number (NaN, "
    "negative), absurd, malformed, impossible (round trips), duplicate (two processes, one name), "
    "order (a load balancer's view that came late).",
    ("role", "reason"),
    registry=REGISTRY,
)
DRAINS_IN_MEMORY = Gauge(
    "firstlight_drains_in_memory",
    "1 while the list of nodes to drain cannot be kept in Redis, though there should be one.",
    registry=REGISTRY,
)
MESH_SUSPECTS = Gauge(
    "firstlight_mesh_suspects",
    "Nodes whose lease runs, but that were not heard lately.",
    registry=REGISTRY,
)
MESH_VIEW_AGE_SECONDS = Gauge(
    "firstlight_mesh_view_age_seconds",
    "Since the last view from any load balancer.",
    registry=REGISTRY,
)
GEOIP_AGE_SECONDS = Gauge(
    "firstlight_geoip_age_seconds",
    "Since the oldest database in use was built; 0 without one.",
    registry=REGISTRY,
)
GEOIP_DATABASES = Gauge(
    "firstlight_geoip_databases",
    "Databases that say where an address is: serving, faulty.",
    ("state",),
    registry=REGISTRY,
)
GEOIP_LOOKUPS = Counter(
    "firstlight_geoip_lookups",
    "Addresses looked up, by what was found: city, country, nothing.",
    ("found",),
    registry=REGISTRY,
)
CLIENT_RTTS = Counter(
    "firstlight_client_rtts",
    "Round trips that clients told, by fate: taken, clamped, refused.",
    ("fate",),
    registry=REGISTRY,
)
EDGE_LISTS = Counter(
    "firstlight_edge_lists",
    "Lists of edges given, by what the first edge's round trip rests on.",
    ("rtt_from",),
    registry=REGISTRY,
)
REDIRECTS = Counter(
    "firstlight_redirects", "Requests sent on to a much nearer edge.", registry=REGISTRY
)
DNS_LOOKUPS = Counter(
    "firstlight_dns_lookups",
    "What the name server asked, by fate: answered, empty, failed.",
    ("fate",),
    registry=REGISTRY,
)
DNS_TABLE_AGE_SECONDS = Gauge(
    "firstlight_dns_table_age_seconds",
    "Since any source last confirmed what DNS answers from.",
    registry=REGISTRY,
)
DNS_EDGES = Gauge("firstlight_dns_edges", "Edges that DNS may name.", registry=REGISTRY)
KV_INDEX_LOOKUPS = Counter(
    "firstlight_kv_index_lookups",
    "Lookups of who holds a prefix, by fate: hit, miss, off (the index was not asked in time).",
    ("fate",),
    registry=REGISTRY,
)
KV_INDEX_SECONDS = Histogram(
    "firstlight_kv_index_lookup_seconds",
    "Time of a lookup that asked the server, failed ones included.",
    buckets=_INSTANT_SECONDS,
    registry=REGISTRY,
)
KV_INDEX_DROPPED = Counter(
    "firstlight_kv_index_writes_dropped",
    "Writes to the KV index that were given up, for want of room or of a server.",
    registry=REGISTRY,
)
KV_INDEX_OPEN = Gauge(
    "firstlight_kv_index_breaker_open",
    "1 while the index server is not asked, because it did not answer; else 0.",
    registry=REGISTRY,
)
SCALE_WANTED = Gauge(
    "firstlight_scale_wanted_cores",
    "Cores that a region should have; no sample while that is unknown.",
    ("region",),
    registry=REGISTRY,
)
SCALE_CORES = Gauge(
    "firstlight_scale_cores", "Cores of a region that are well.", ("region",), registry=REGISTRY
)
SCALE_OFFERED = Gauge(
    "firstlight_scale_offered",
    "Work for a region, refused work included, in prefill-token equivalents a second.",
    ("region",),
    registry=REGISTRY,
)
SCALE_CAPACITY = Gauge(
    "firstlight_scale_capacity",
    "What a region's cores can do, in prefill-token equivalents a second.",
    ("region",),
    registry=REGISTRY,
)
SCALE_UTILISATION = Gauge(
    "firstlight_scale_utilisation", "Offered over capacity.", ("region",), registry=REGISTRY
)
SCALE_PREFILL_SHARE = Gauge(
    "firstlight_scale_prefill_share",
    "Share of the cores' time that is prefill, if no prompt is cached.",
    ("region",),
    registry=REGISTRY,
)
SCALE_TTFT = Gauge(
    "firstlight_scale_ttft_seconds",
    "Time to the first token by class: predicted, and promised.",
    ("region", "sla_class", "kind"),
    registry=REGISTRY,
)
