"""Which network a client counts by."""

from ipaddress import ip_address, ip_network

import pytest

from firstlight.shared.geography.subnets import address_of, is_ip, network_of, subnet_of


@pytest.mark.parametrize(
    ("text", "network"),
    [
        ("203.0.113.7", "203.0.113.0/24"),
        ("203.0.113.7/32", "203.0.113.0/24"),
        ("203.0.113.7/24", "203.0.113.0/24"),
        ("203.0.113.7/16", "203.0.0.0/16"),
        ("0.0.0.0/0", "0.0.0.0/0"),
        ("2001:db8:1:2::3", "2001:db8:1::/48"),
        ("2001:db8:1:2::/40", "2001:db8::/40"),
        ("::ffff:203.0.113.7", "203.0.113.0/24"),
        ("::ffff:203.0.113.0/120", "203.0.113.0/24"),
        ("::/0", "::/0"),
    ],
)
def test_a_network_is_never_finer_than_a_client_counts_by(text: str, network: str) -> None:
    assert subnet_of(text) == ip_network(network)


@pytest.mark.parametrize(
    "text", ["", "x", "1.2.3", "1.2.3.4/33", "::/129", "fe80::1%eth0", "1.2.3.4/-1", "1" * 100]
)
def test_what_is_no_network_is_none(text: str) -> None:
    assert subnet_of(text) is None


def test_the_fourth_version_within_the_sixth_is_the_fourth() -> None:
    assert address_of("::ffff:192.0.2.1") == ip_address("192.0.2.1")


@pytest.mark.parametrize("text", ["", "localhost", "fe80::1%lo", "1.2.3.4.5", "9" * 70])
def test_what_is_no_address_is_none(text: str) -> None:
    assert address_of(text) is None
    assert not is_ip(text)


def test_an_address_counts_by_its_network() -> None:
    assert network_of(ip_address("192.0.2.77")) == ip_network("192.0.2.0/24")
    assert network_of(ip_address("2001:db8:1:2::3")) == ip_network("2001:db8:1::/48")
