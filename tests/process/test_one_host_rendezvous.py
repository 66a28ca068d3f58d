"""Where the supervisor's store listens."""

from __future__ import annotations

from pathlib import Path

import pytest

from ett.one_host_rendezvous import OneHostRendezvous

pytestmark = pytest.mark.process
LISTEN, LOOPBACK = "0A", "0100007F"


def listening_addresses(port: int) -> list[str]:
    """Return the hexadecimal addresses, IPv4 and IPv6, at which this host listens on a port."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path("/proc/net", name).read_text().splitlines()[1:]]
    places = [fields[1].split(":") for fields in lines if fields[3] == LISTEN]
    return [address for address, hex_port in places if int(hex_port, 16) == port]


def test_only_this_host_reaches_the_store_of_an_attempt() -> None:
    info = OneHostRendezvous("j").next_rendezvous()
    assert listening_addresses(info.bootstrap_store_info.master_port) == [LOOPBACK]


def test_every_attempt_has_a_store_of_its_own() -> None:
    rendezvous = OneHostRendezvous("j")
    first, second = rendezvous.next_rendezvous(), rendezvous.next_rendezvous()
    first.store.set("address", "of a rank that is gone")
    assert not second.store.check(["address"])
