"""What the laboratory's router holds of what it is asked: round trips, packets a second, its CPU.

    python -m firstlight.infra.bench.lab_router [--round-trips-ms 0,20,140] [--pings 200]
                                                [--rates 1000,5000,10000] [--seconds 5]

Two namespaces. Round trips are those of ICMP echoes, which the kernel at the other end answers,
timed from just before a packet is sent to the kernel's stamp on its answer: no program's own
lateness is in them. Then packets are sent at each rate, and counted where they arrive. Exit code 1
if a median round trip is more than 1 ms from what was asked, or less than 99.9 % of the packets of
a rate up to 5,000 a second arrived.
"""

import argparse
import json
import socket
import struct
import tempfile
from pathlib import Path
from typing import Any

import yaml

from firstlight.infra.bench.machine import heading, percentile
from firstlight.infra.lab.network import Network, start_network
from firstlight.infra.lab.topology_file import load_topology
from firstlight.shared.clock import monotonic_s, sleep_s, unix_s

ERROR_MS_MAX = 1.0
RATE_MUST = 5_000
ARRIVED_MIN = 0.999
GAP_S = 0.005
ANSWER_S = 2.0
PORT = 7000
PACKET_BYTES = 200
SETTLE_S = 1.0
_ECHO, _ANSWER = 8, 0


def topology(folder: Path, rtt_ms: float) -> Path:
    """A file with two nodes at this distance."""
    path = folder / "two.yaml"
    node = {"role": "client", "region": "here"}
    whole = {
        "regions": {"here": {}},
        "nodes": {"one": node, "other": node},
        "inside": {"rtt_ms": rtt_ms},
    }
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return path


def echo_packet(number: int) -> bytes:
    """An ICMP echo request."""
    body = struct.pack("!BBHHH", _ECHO, 0, 0, 0x0F17, number) + bytes(48)
    total = sum(struct.unpack(f"!{len(body) // 2}H", body))
    total = (total >> 16) + (total & 0xFFFF)
    check = ~(total + (total >> 16)) & 0xFFFF
    return body[:2] + struct.pack("!H", check) + body[4:]


def round_trips_ms(network: Network, pings: int) -> list[float]:
    """Round trips from one node to the other; a lost one counts as the time that was waited."""
    with network.namespace("one").inside():
        raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    with raw:
        raw.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_TIMESTAMPNS", 35), 1)
        raw.settimeout(ANSWER_S)
        raw.connect((network.addresses["other"], 0))
        times = []
        for number in range(pings):
            packet = echo_packet(number)
            begun = unix_s()
            raw.send(packet)
            times.append((_answered(raw, number) - begun) * 1e3)
            sleep_s(GAP_S)
    return times


def _answered(raw: socket.socket, number: int) -> float:
    """When the kernel had the answer with this number."""
    while True:
        try:
            packet, stamps, _, _ = raw.recvmsg(2048, 128)
        except TimeoutError:
            return unix_s()
        icmp = packet[(packet[0] & 15) * 4 :]
        if icmp[0] == _ANSWER and struct.unpack("!H", icmp[6:8])[0] == number:
            seconds, nanoseconds = struct.unpack("qq", stamps[0][2][:16])
            return float(seconds + nanoseconds / 1e9)


def flood(network: Network, packets_per_s: int, seconds: float) -> dict[str, Any]:
    """Send at a rate, each packet at its time or as soon after as we run; count what arrives."""
    kind = (socket.AF_INET, socket.SOCK_DGRAM)
    with network.namespace("other").inside():
        sink = socket.socket(*kind)
    with network.namespace("one").inside():
        source = socket.socket(*kind)
    with sink, source, network.control() as control:
        sink.setsockopt(socket.SOL_SOCKET, getattr(socket, "SO_RCVBUFFORCE", 33), 64 << 20)
        sink.bind((network.addresses["other"], PORT))
        sink.setblocking(False)
        source.connect((network.addresses["other"], PORT))
        total, sent, data = round(packets_per_s * seconds), 0, bytes(PACKET_BYTES)
        begun = monotonic_s()
        while sent < total:
            due = min(total, int((monotonic_s() - begun) * packets_per_s) + 1)
            for _ in range(due - sent):
                source.send(data)
            sent = max(sent, due)
            sleep_s(max(0.0, begun + sent / packets_per_s - monotonic_s()))
        took_s = monotonic_s() - begun
        stats = control.stats()
        sleep_s(SETTLE_S)
        arrived = _count(sink)
    return {
        "asked_per_s": packets_per_s,
        "sent_per_s": round(sent / took_s),
        "arrived": round(arrived / sent, 5),
        "router_cpu_share": stats["cpu_share"],
        "late_p50_ms": stats["late_p50_ms"],
        "late_p99_ms": stats["late_p99_ms"],
    }


def _count(sink: socket.socket) -> int:
    count = 0
    while True:
        try:
            sink.recv(2048)
        except BlockingIOError:
            return count
        count += 1


def measure(folder: Path, rtt_ms: float, pings: int) -> dict[str, float]:
    """Round trips at one distance."""
    file = topology(folder, rtt_ms)
    network = start_network(load_topology(file), file, folder)
    try:
        round_trips_ms(network, 10)
        times = round_trips_ms(network, pings)
    finally:
        network.close()
    figures = {f"p{p}_ms": round(percentile(times, p), 3) for p in (1, 50, 95, 99)}
    return {"asked_ms": rtt_ms, **figures, "worst_ms": round(max(times), 3)}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, prog="lab_router")
    parser.add_argument("--round-trips-ms", default="0,20,140")
    parser.add_argument("--pings", type=int, default=200)
    parser.add_argument("--rates", default="1000,5000,10000")
    parser.add_argument("--seconds", type=float, default=5.0)
    given = parser.parse_args()
    print(heading(), flush=True)
    distances, loads = [], []
    with tempfile.TemporaryDirectory() as folder:
        for text in given.round_trips_ms.split(","):
            distances.append(measure(Path(folder), float(text), given.pings))
            print(f"  {distances[-1]}", flush=True)
        file = topology(Path(folder), 20.0)
        for text in given.rates.split(","):
            network = start_network(load_topology(file), file, Path(folder))
            try:
                loads.append(flood(network, int(text), given.seconds))
            finally:
                network.close()
            print(f"  {loads[-1]}", flush=True)
    print(json.dumps({"round_trips": distances, "loads": loads}))
    far = [one for one in distances if abs(one["p50_ms"] - one["asked_ms"]) > ERROR_MS_MAX]
    lost = [
        one for one in loads if one["asked_per_s"] <= RATE_MUST and one["arrived"] < ARRIVED_MIN
    ]
    return 1 if far or lost else 0


if __name__ == "__main__":
    raise SystemExit(main())
