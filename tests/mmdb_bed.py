"""Small databases of places, written byte by byte as MaxMind's format 2.0 says.

https://maxmind.github.io/MaxMind-DB/
"""

from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from struct import pack

BUILT_UNIX_S = 1_780_000_000
_MARKER = b"\xab\xcd\xefMaxMind.com"
_STRING, _DOUBLE, _UINT16, _UINT32, _MAP, _UINT64, _ARRAY = 2, 3, 5, 6, 7, 9, 11
_INTEGERS = {"build_epoch": _UINT64, "node_count": _UINT32}
"""Of other integers the format wants 16 bits."""


def nested(
    country: str, latitude: float, longitude: float, *, city: str = "C", radius_km: int | None = 20
) -> dict[str, object]:
    """A record of MaxMind's shape."""
    location: dict[str, object] = {"latitude": latitude, "longitude": longitude}
    if radius_km is not None:
        location["accuracy_radius"] = radius_km
    record: dict[str, object] = {"country": {"iso_code": country}, "location": location}
    return {**record, "city": {"names": {"en": city}}} if city else record


def flat(country: str, latitude: float, longitude: float, *, city: str = "C") -> dict[str, object]:
    """A record of DB-IP's shape."""
    return {
        "city": city,
        "country_code": country,
        "latitude": latitude,
        "longitude": longitude,
        "state1": "",
    }


LONDON = nested("GB", 51.51, -0.09)
TOKYO = nested("JP", 35.69, 139.69)
WORLD: Mapping[str, Mapping[str, object]] = {
    "81.2.69.0/24": LONDON,
    "203.0.113.0/24": TOKYO,
    "2001:db8:1::/48": LONDON,
    "2001:db8:2::/48": TOKYO,
}


def write_database(
    path: Path,
    networks: Mapping[str, Mapping[str, object]] = WORLD,
    *,
    kind: str = "GeoLite2-City",
    version: int = 6,
    built_unix_s: int = BUILT_UNIX_S,
) -> Path:
    """A database that knows these networks."""
    path.write_bytes(database(networks, kind, version, built_unix_s))
    return path


def database(
    networks: Mapping[str, Mapping[str, object]], kind: str, version: int, built_unix_s: int
) -> bytes:
    nodes: list[list[int | None]] = [[None, None]]
    data, offsets = b"", []
    for text, record in networks.items():
        offsets.append(len(data))
        data += _encoded(record)
        _add(nodes, _bits(text, version), -len(offsets))
    count = len(nodes)
    tree = b"".join(_record(side, count, offsets) for node in nodes for side in node)
    metadata = {
        "binary_format_major_version": 2,
        "binary_format_minor_version": 0,
        "build_epoch": built_unix_s,
        "database_type": kind,
        "description": {"en": "a test"},
        "ip_version": version,
        "languages": ["en"],
        "node_count": count,
        "record_size": 24,
    }
    return tree + bytes(16) + data + _MARKER + _encoded(metadata)


def _bits(text: str, version: int) -> str:
    network = ip_network(text)
    length = 32 if network.version == 4 else 128
    bits = f"{int(network.network_address):0{length}b}"[: network.prefixlen]
    return "0" * 96 + bits if (version, network.version) == (6, 4) else bits


def _add(nodes: list[list[int | None]], bits: str, leaf: int) -> None:
    """Leaves are negative: minus the number of their record."""
    at = 0
    for bit in map(int, bits[:-1]):
        below = nodes[at][bit]
        if below is None:
            nodes.append([None, None])
            below = nodes[at][bit] = len(nodes) - 1
        at = below
    nodes[at][int(bits[-1])] = leaf


def _record(side: int | None, count: int, offsets: list[int]) -> bytes:
    if side is None:
        return count.to_bytes(3, "big")
    return (side if side > 0 else count + 16 + offsets[-side - 1]).to_bytes(3, "big")


def _encoded(value: object, key: str = "") -> bytes:
    if isinstance(value, str):
        raw = value.encode()
        return _head(_STRING, len(raw)) + raw
    if isinstance(value, float):
        return _head(_DOUBLE, 8) + pack(">d", value)
    if isinstance(value, int):
        raw = value.to_bytes(8, "big").lstrip(b"\0")
        return _head(_INTEGERS.get(key, _UINT16), len(raw)) + raw
    if isinstance(value, list):
        return _head(_ARRAY, len(value)) + b"".join(map(_encoded, value))
    assert isinstance(value, Mapping)
    pairs = b"".join(_encoded(key) + _encoded(below, key) for key, below in value.items())
    return _head(_MAP, len(value)) + pairs


def _head(kind: int, size: int) -> bytes:
    assert size < 29, size
    return bytes([kind << 5 | size]) if kind < 8 else bytes([size, kind - 7])
