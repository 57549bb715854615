"""Networks of clients: the piece of an address that decisions rest on. Sans-IO.

A client counts by its /24 or /48, whoever asks for it: so an answer holds for a whole network, and
one client of a network is like another.
"""

from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
    ip_network,
)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

IPV4_BITS = 24
IPV6_BITS = 48
TEXT_CHARS_MAX = 64


def is_ip(text: str) -> bool:
    """Whether it is an address of one host, without a zone."""
    try:
        return "%" not in text and bool(ip_address(text))
    except ValueError:
        return False


def address_of(text: str) -> Address | None:
    """An address; IPv4 within IPv6 is IPv4. None for what is none, and what names an interface."""
    if len(text) > TEXT_CHARS_MAX or "%" in text:
        return None
    try:
        return _plain(ip_address(text))
    except ValueError:
        return None


def subnet_of(text: str) -> Network | None:
    """The network that is decided for: `ADDRESS` or `ADDRESS/BITS`, no finer than /24 or /48."""
    if len(text) > TEXT_CHARS_MAX or "%" in text:
        return None
    try:
        given = ip_network(text, strict=False)
    except ValueError:
        return None
    if isinstance(given, IPv6Network) and given.prefixlen >= 96:
        plain = _plain(given.network_address)
        if isinstance(plain, IPv4Address):
            return network_of(plain, given.prefixlen - 96)
    most = IPV4_BITS if isinstance(given, IPv4Network) else IPV6_BITS
    return given if given.prefixlen <= most else given.supernet(new_prefix=most)


def network_of(address: Address, bits: int | None = None) -> Network:
    """The network that an address is decided by; a coarser one if no more bits are known of it."""
    most = IPV4_BITS if isinstance(address, IPv4Address) else IPV6_BITS
    return ip_network((address, most if bits is None else min(bits, most)), strict=False)


def _plain(address: Address) -> Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return address if mapped is None else mapped
