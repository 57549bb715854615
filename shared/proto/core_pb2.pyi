from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EdgeFrame(_message.Message):
    __slots__ = ("opens", "hints", "cancels", "credits", "ping")
    OPENS_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    CANCELS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    opens: _containers.RepeatedCompositeFieldContainer[Open]
    hints: _containers.RepeatedCompositeFieldContainer[Hint]
    cancels: _containers.RepeatedCompositeFieldContainer[Cancel]
    credits: _containers.RepeatedCompositeFieldContainer[Credit]
    ping: Ping
    def __init__(self, opens: _Optional[_Iterable[_Union[Open, _Mapping]]] = ..., hints: _Optional[_Iterable[_Union[Hint, _Mapping]]] = ..., cancels: _Optional[_Iterable[_Union[Cancel, _Mapping]]] = ..., credits: _Optional[_Iterable[_Union[Credit, _Mapping]]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ...) -> None: ...

class Sampling(_message.Message):
    __slots__ = ("order_version", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "bias_ids", "biases", "logprobs")
    ORDER_VERSION_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    BIAS_IDS_FIELD_NUMBER: _ClassVar[int]
    BIASES_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    order_version: int
    temperature: float
    top_p: float
    top_k: int
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    bias_ids: _containers.RepeatedScalarFieldContainer[int]
    biases: _containers.RepeatedScalarFieldContainer[float]
    logprobs: int
    def __init__(self, order_version: _Optional[int] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., bias_ids: _Optional[_Iterable[int]] = ..., biases: _Optional[_Iterable[float]] = ..., logprobs: _Optional[int] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("request", "epoch", "choice", "model", "tokenizer_hash", "salt", "prompt", "committed", "sampling", "seed", "max_tokens", "eos_ids", "priority", "budget_s")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHOICE_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_IDS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    BUDGET_S_FIELD_NUMBER: _ClassVar[int]
    request: str
    epoch: int
    choice: int
    model: str
    tokenizer_hash: str
    salt: bytes
    prompt: _containers.RepeatedScalarFieldContainer[int]
    committed: _containers.RepeatedScalarFieldContainer[int]
    sampling: Sampling
    seed: int
    max_tokens: int
    eos_ids: _containers.RepeatedScalarFieldContainer[int]
    priority: int
    budget_s: float
    def __init__(self, request: _Optional[str] = ..., epoch: _Optional[int] = ..., choice: _Optional[int] = ..., model: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., salt: _Optional[bytes] = ..., prompt: _Optional[_Iterable[int]] = ..., committed: _Optional[_Iterable[int]] = ..., sampling: _Optional[_Union[Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., eos_ids: _Optional[_Iterable[int]] = ..., priority: _Optional[int] = ..., budget_s: _Optional[float] = ...) -> None: ...

class Hint(_message.Message):
    __slots__ = ("request", "start", "chain", "ids", "source")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    request: str
    start: int
    chain: bytes
    ids: _containers.RepeatedScalarFieldContainer[int]
    source: str
    def __init__(self, request: _Optional[str] = ..., start: _Optional[int] = ..., chain: _Optional[bytes] = ..., ids: _Optional[_Iterable[int]] = ..., source: _Optional[str] = ...) -> None: ...

class Cancel(_message.Message):
    __slots__ = ("request", "epoch")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    request: str
    epoch: int
    def __init__(self, request: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class Credit(_message.Message):
    __slots__ = ("request", "position")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    request: str
    position: int
    def __init__(self, request: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("id", "padding")
    ID_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    id: int
    padding: bytes
    def __init__(self, id: _Optional[int] = ..., padding: _Optional[bytes] = ...) -> None: ...

class CoreFrame(_message.Message):
    __slots__ = ("welcome", "commits", "done", "failed", "load", "pong")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    commits: _containers.RepeatedCompositeFieldContainer[Commits]
    done: _containers.RepeatedCompositeFieldContainer[Done]
    failed: _containers.RepeatedCompositeFieldContainer[Failed]
    load: Load
    pong: int
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., commits: _Optional[_Iterable[_Union[Commits, _Mapping]]] = ..., done: _Optional[_Iterable[_Union[Done, _Mapping]]] = ..., failed: _Optional[_Iterable[_Union[Failed, _Mapping]]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., pong: _Optional[int] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("info",)
    INFO_FIELD_NUMBER: _ClassVar[int]
    info: Node
    def __init__(self, info: _Optional[_Union[Node, _Mapping]] = ...) -> None: ...

class Commits(_message.Message):
    __slots__ = ("request", "epoch", "position", "ids", "chain", "logprobs", "cached_tokens", "queue_ms", "prefill_ms")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    CHAIN_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    request: str
    epoch: int
    position: int
    ids: _containers.RepeatedScalarFieldContainer[int]
    chain: bytes
    logprobs: _containers.RepeatedCompositeFieldContainer[Logprobs]
    cached_tokens: int
    queue_ms: float
    prefill_ms: float
    def __init__(self, request: _Optional[str] = ..., epoch: _Optional[int] = ..., position: _Optional[int] = ..., ids: _Optional[_Iterable[int]] = ..., chain: _Optional[bytes] = ..., logprobs: _Optional[_Iterable[_Union[Logprobs, _Mapping]]] = ..., cached_tokens: _Optional[int] = ..., queue_ms: _Optional[float] = ..., prefill_ms: _Optional[float] = ...) -> None: ...

class Logprobs(_message.Message):
    __slots__ = ("chosen", "top_ids", "top")
    CHOSEN_FIELD_NUMBER: _ClassVar[int]
    TOP_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_FIELD_NUMBER: _ClassVar[int]
    chosen: float
    top_ids: _containers.RepeatedScalarFieldContainer[int]
    top: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, chosen: _Optional[float] = ..., top_ids: _Optional[_Iterable[int]] = ..., top: _Optional[_Iterable[float]] = ...) -> None: ...

class HintCount(_message.Message):
    __slots__ = ("source", "offered", "verified", "accepted")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    source: str
    offered: int
    verified: int
    accepted: int
    def __init__(self, source: _Optional[str] = ..., offered: _Optional[int] = ..., verified: _Optional[int] = ..., accepted: _Optional[int] = ...) -> None: ...

class Mark(_message.Message):
    __slots__ = ("what", "ms", "detail")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    what: str
    ms: float
    detail: str
    def __init__(self, what: _Optional[str] = ..., ms: _Optional[float] = ..., detail: _Optional[str] = ...) -> None: ...

class Done(_message.Message):
    __slots__ = ("request", "epoch", "hints", "marks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HINTS_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    request: str
    epoch: int
    hints: _containers.RepeatedCompositeFieldContainer[HintCount]
    marks: _containers.RepeatedCompositeFieldContainer[Mark]
    def __init__(self, request: _Optional[str] = ..., epoch: _Optional[int] = ..., hints: _Optional[_Iterable[_Union[HintCount, _Mapping]]] = ..., marks: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ...) -> None: ...

class Failed(_message.Message):
    __slots__ = ("request", "epoch", "kind", "message", "retry_elsewhere", "retry_after_s", "marks")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    MARKS_FIELD_NUMBER: _ClassVar[int]
    request: str
    epoch: int
    kind: str
    message: str
    retry_elsewhere: bool
    retry_after_s: float
    marks: _containers.RepeatedCompositeFieldContainer[Mark]
    def __init__(self, request: _Optional[str] = ..., epoch: _Optional[int] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ..., retry_elsewhere: _Optional[bool] = ..., retry_after_s: _Optional[float] = ..., marks: _Optional[_Iterable[_Union[Mark, _Mapping]]] = ...) -> None: ...

class StepMs(_message.Message):
    __slots__ = ("rows", "ms")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    rows: int
    ms: float
    def __init__(self, rows: _Optional[int] = ..., ms: _Optional[float] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("running", "queued", "queued_prefill_tokens", "sequences_max", "kv_used_share", "steps", "step_ms", "prefill_ms_per_token", "opens_counted", "draining", "queued_prefill_ms", "prefill_token_ms", "prefill_pair_ms", "prefill_share")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_MAX_FIELD_NUMBER: _ClassVar[int]
    KV_USED_SHARE_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STEP_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_MS_PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    OPENS_COUNTED_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_PREFILL_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKEN_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_PAIR_MS_FIELD_NUMBER: _ClassVar[int]
    PREFILL_SHARE_FIELD_NUMBER: _ClassVar[int]
    running: int
    queued: int
    queued_prefill_tokens: int
    sequences_max: int
    kv_used_share: float
    steps: int
    step_ms: _containers.RepeatedCompositeFieldContainer[StepMs]
    prefill_ms_per_token: float
    opens_counted: int
    draining: bool
    queued_prefill_ms: float
    prefill_token_ms: float
    prefill_pair_ms: float
    prefill_share: float
    def __init__(self, running: _Optional[int] = ..., queued: _Optional[int] = ..., queued_prefill_tokens: _Optional[int] = ..., sequences_max: _Optional[int] = ..., kv_used_share: _Optional[float] = ..., steps: _Optional[int] = ..., step_ms: _Optional[_Iterable[_Union[StepMs, _Mapping]]] = ..., prefill_ms_per_token: _Optional[float] = ..., opens_counted: _Optional[int] = ..., draining: _Optional[bool] = ..., queued_prefill_ms: _Optional[float] = ..., prefill_token_ms: _Optional[float] = ..., prefill_pair_ms: _Optional[float] = ..., prefill_share: _Optional[float] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("node", "role", "incarnation", "region", "address", "numerics_class", "models", "tokenizer_hash", "context_max", "latitude", "longitude", "failure_domain", "ips")
    NODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    NUMERICS_CLASS_FIELD_NUMBER: _ClassVar[int]
    MODELS_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_MAX_FIELD_NUMBER: _ClassVar[int]
    LATITUDE_FIELD_NUMBER: _ClassVar[int]
    LONGITUDE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    IPS_FIELD_NUMBER: _ClassVar[int]
    node: str
    role: str
    incarnation: int
    region: str
    address: str
    numerics_class: str
    models: _containers.RepeatedScalarFieldContainer[str]
    tokenizer_hash: str
    context_max: int
    latitude: float
    longitude: float
    failure_domain: str
    ips: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., role: _Optional[str] = ..., incarnation: _Optional[int] = ..., region: _Optional[str] = ..., address: _Optional[str] = ..., numerics_class: _Optional[str] = ..., models: _Optional[_Iterable[str]] = ..., tokenizer_hash: _Optional[str] = ..., context_max: _Optional[int] = ..., latitude: _Optional[float] = ..., longitude: _Optional[float] = ..., failure_domain: _Optional[str] = ..., ips: _Optional[_Iterable[str]] = ...) -> None: ...
