from firstlight.shared.proto import core_pb2 as _core_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Rtt(_message.Message):
    __slots__ = ("core", "ms")
    CORE_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    core: str
    ms: float
    def __init__(self, core: _Optional[str] = ..., ms: _Optional[float] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("info", "seq", "load", "rtts", "leaving", "sketch", "demand", "following")
    INFO_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RTTS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    DEMAND_FIELD_NUMBER: _ClassVar[int]
    FOLLOWING_FIELD_NUMBER: _ClassVar[int]
    info: _core_pb2.Node
    seq: int
    load: _core_pb2.Load
    rtts: _containers.RepeatedCompositeFieldContainer[Rtt]
    leaving: bool
    sketch: bytes
    demand: Demand
    following: Following
    def __init__(self, info: _Optional[_Union[_core_pb2.Node, _Mapping]] = ..., seq: _Optional[int] = ..., load: _Optional[_Union[_core_pb2.Load, _Mapping]] = ..., rtts: _Optional[_Iterable[_Union[Rtt, _Mapping]]] = ..., leaving: _Optional[bool] = ..., sketch: _Optional[bytes] = ..., demand: _Optional[_Union[Demand, _Mapping]] = ..., following: _Optional[_Union[Following, _Mapping]] = ...) -> None: ...

class Demand(_message.Message):
    __slots__ = ("work_per_s", "refused_per_s", "prompt_tokens_per_s", "output_tokens_per_s", "requests_per_s")
    WORK_PER_S_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PER_S_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_S_FIELD_NUMBER: _ClassVar[int]
    work_per_s: float
    refused_per_s: float
    prompt_tokens_per_s: float
    output_tokens_per_s: float
    requests_per_s: float
    def __init__(self, work_per_s: _Optional[float] = ..., refused_per_s: _Optional[float] = ..., prompt_tokens_per_s: _Optional[float] = ..., output_tokens_per_s: _Optional[float] = ..., requests_per_s: _Optional[float] = ...) -> None: ...

class Share(_message.Message):
    __slots__ = ("region", "share")
    REGION_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    region: str
    share: float
    def __init__(self, region: _Optional[str] = ..., share: _Optional[float] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("origin", "shares", "shed")
    ORIGIN_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    SHED_FIELD_NUMBER: _ClassVar[int]
    origin: str
    shares: _containers.RepeatedCompositeFieldContainer[Share]
    shed: float
    def __init__(self, origin: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[Share, _Mapping]]] = ..., shed: _Optional[float] = ...) -> None: ...

class Following(_message.Message):
    __slots__ = ("lb", "row")
    LB_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    lb: str
    row: Row
    def __init__(self, lb: _Optional[str] = ..., row: _Optional[_Union[Row, _Mapping]] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("report", "age_s")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    report: Report
    age_s: float
    def __init__(self, report: _Optional[_Union[Report, _Mapping]] = ..., age_s: _Optional[float] = ...) -> None: ...

class Draining(_message.Message):
    __slots__ = ("nodes", "whole")
    NODES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    whole: bool
    def __init__(self, nodes: _Optional[_Iterable[str]] = ..., whole: _Optional[bool] = ...) -> None: ...

class MeshView(_message.Message):
    __slots__ = ("lb", "seq", "entries", "incarnation", "suspects", "draining", "rows")
    LB_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    lb: str
    seq: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    incarnation: int
    suspects: _containers.RepeatedScalarFieldContainer[str]
    draining: Draining
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    def __init__(self, lb: _Optional[str] = ..., seq: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., incarnation: _Optional[int] = ..., suspects: _Optional[_Iterable[str]] = ..., draining: _Optional[_Union[Draining, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ...) -> None: ...
