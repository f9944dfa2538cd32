"""Which network card leads to another machine: asked of the real kernel, of two hosts where that is possible."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from modules.machine import Route, is_loopback_name, local_addresses, own_addresses, route_of_group, route_to
from tests.hosts import ROOT, two_hosts, why_not


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback is called lo only there")
def test_the_loopback() -> None:
    for host in ("127.0.0.1", "localhost", "127.0.0.2"):
        route = route_to(host)
        assert route is not None
        assert (route.interface, route.is_loopback) == ("lo", True)


def test_what_nobody_knows() -> None:
    assert route_to("no such host") is None
    assert route_to("") is None or isinstance(route_to(""), Route)
    assert set(own_addresses()) == set(local_addresses())


@pytest.mark.parametrize(("host", "is_loopback"), [("localhost", True), ("127.1.2.3", True), ("[::1]", True),
                                                   ("10.0.0.1", False), ("zeus", False)])  # fmt: skip
def test_names_of_the_loopback(host: str, is_loopback: bool) -> None:
    assert is_loopback_name(host) == is_loopback


@pytest.mark.skipif(bool(why_not()), reason=why_not() or "possible")
def test_the_way_between_two_hosts() -> None:
    program = """
import json, sys
from modules.machine import own_addresses, route_of_group, route_to
route, own, name = route_to(sys.argv[1]), route_of_group(sys.argv[2]), route_of_group("localhost")
print(json.dumps([route.interface, route.address, own.interface, own.address, name, own_addresses()]))
"""
    with two_hosts() as (alpha, beta):
        for here, other in ((alpha, beta), (beta, alpha)):
            argv = here.command([sys.executable, "-c", program, other.address, here.address])
            done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
            assert json.loads(done.stdout) == ["cable", here.address, "cable", here.address, None, [here.address]]
    assert route_of_group("no such host") is None
