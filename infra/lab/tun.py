"""TUN devices: a network interface whose packets a program of ours reads and writes.

The device is made in the network namespace that the calling thread is in, and vanishes when the
last descriptor of it is closed.
"""

import fcntl
import os
import struct
from pathlib import Path

CLONE = Path("/dev/net/tun")
PACKET_BYTES_MAX = 65_535

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_V4, _V6 = 4, 6


def open_tun(name: str) -> int:
    """A new device; returns its descriptor, which does not block. Raises `OSError`."""
    fd = os.open(CLONE, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(fd, _TUNSETIFF, request)
    except BaseException:
        os.close(fd)
        raise
    return fd


def destination_of(packet: bytes) -> bytes:
    """The address that an IPv4 or IPv6 packet goes to; empty if it is neither."""
    version = packet[0] >> 4 if packet else 0
    if version == _V4 and len(packet) >= 20:
        return packet[16:20]
    if version == _V6 and len(packet) >= 40:
        return packet[24:40]
    return b""
