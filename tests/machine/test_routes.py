"""Routes to other machines, from the real kernel; between two network namespaces if the system allows it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from modules.machine import Route, is_loopback_name, local_addresses, preferred_addresses, route_to, route_to_master
from tests.hosts import ROOT, skip_reason, two_hosts


@pytest.mark.skipif(sys.platform != "linux", reason="the loopback is called lo only there")
def test_loopback_route() -> None:
    for host in ("127.0.0.1", "localhost", "127.0.0.2"):
        route = route_to(host)
        assert route is not None
        assert (route.interface, route.is_loopback) == ("lo", True)


def test_unknown_host_has_no_route() -> None:
    assert route_to("no such host") is None
    assert route_to("") is None or isinstance(route_to(""), Route)
    assert set(preferred_addresses()) == set(local_addresses())


@pytest.mark.parametrize(("host", "is_loopback"), [("localhost", True), ("127.1.2.3", True), ("[::1]", True),
                                                   ("10.0.0.1", False), ("zeus", False)])  # fmt: skip
def test_loopback_names(host: str, is_loopback: bool) -> None:
    assert is_loopback_name(host) == is_loopback


@pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "possible")
def test_route_between_two_hosts() -> None:
    program = """
import json, sys
from modules.machine import preferred_addresses, route_to_master, route_to
route, own, name = route_to(sys.argv[1]), route_to_master(sys.argv[2]), route_to_master("localhost")
print(json.dumps([route.interface, route.address, own.interface, own.address, name, preferred_addresses()]))
"""
    with two_hosts() as (alpha, beta):
        for here, other in ((alpha, beta), (beta, alpha)):
            argv = here.command([sys.executable, "-c", program, other.address, here.address])
            done = subprocess.run(argv, capture_output=True, text=True, check=True, cwd=ROOT)
            assert json.loads(done.stdout) == ["cable", here.address, "cable", here.address, None, [here.address]]
    assert route_to_master("no such host") is None
