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
    __slots__ = ("info", "seq", "load", "rtts", "leaving", "sketch")
    INFO_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    RTTS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SKETCH_FIELD_NUMBER: _ClassVar[int]
    info: _core_pb2.Node
    seq: int
    load: _core_pb2.Load
    rtts: _containers.RepeatedCompositeFieldContainer[Rtt]
    leaving: bool
    sketch: bytes
    def __init__(self, info: _Optional[_Union[_core_pb2.Node, _Mapping]] = ..., seq: _Optional[int] = ..., load: _Optional[_Union[_core_pb2.Load, _Mapping]] = ..., rtts: _Optional[_Iterable[_Union[Rtt, _Mapping]]] = ..., leaving: _Optional[bool] = ..., sketch: _Optional[bytes] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("report", "age_s")
    REPORT_FIELD_NUMBER: _ClassVar[int]
    AGE_S_FIELD_NUMBER: _ClassVar[int]
    report: Report
    age_s: float
    def __init__(self, report: _Optional[_Union[Report, _Mapping]] = ..., age_s: _Optional[float] = ...) -> None: ...

class MeshView(_message.Message):
    __slots__ = ("lb", "seq", "entries")
    LB_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    lb: str
    seq: int
    entries: _containers.RepeatedCompositeFieldContainer[Entry]
    def __init__(self, lb: _Optional[str] = ..., seq: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ...) -> None: ...
