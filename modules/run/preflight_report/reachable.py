"""Tests the machines that a preflight would start over ssh, so that one that cannot take part leaves the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import psutil

from modules.run.hosts.check import HostCheck, check_host
from modules.run.hosts.host import Host
from modules.run.preflight_report.report import Cell

_AT_ONCE: Final = 8


def reachable_hosts(hosts: Sequence[Host], report: Callable[[str], None]) -> tuple[list[Host], tuple[Cell, ...]]:
    """The machines that can take part, and a finding about each. Takes some seconds; a signal ends it at once."""
    if not hosts:
        return [], ()
    report(f"Testing {', '.join(map(str, hosts))} over ssh.")
    pool = ThreadPoolExecutor(min(len(hosts), _AT_ONCE))
    try:
        checks = list(pool.map(check_host, hosts))
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for ssh in psutil.Process().children():  # for which Python would wait before it ends
            with suppress(psutil.Error):
                ssh.kill()
        raise
    pool.shutdown()
    for check in checks:
        if check.fault:
            report(check.fault)  # which names the machine
    return [check.host for check in checks if not check.fault], tuple(map(_cell, checks))


def _cell(check: HostCheck) -> Cell:
    return Cell("ssh", check.host.name, "red" if check.fault else "green", str(check))
