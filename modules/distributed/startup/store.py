"""The key-value store that all processes share: rank 0 or the launcher hosts it, the others connect to it."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from datetime import timedelta

from modules.distributed.formatting import error_summary
from modules.distributed.run_store import RunStore
from modules.distributed.startup.loopback import HAS_LIBUV, host_store
from modules.distributed.startup.rendezvous import REPORT_AFTER_S, GroupError, Log, rendezvous, rendezvous_timeout
from modules.machine import hostname
from modules.run.format_duration import in_words
from modules.run.launch.rank_env import RankEnv
from modules.run.launch.store_secret import store_secret
from modules.torch_compat import Store, TCPStore

logger = logging.getLogger("tandem")

PROBE_TIMEOUT_S = 3.0
LAUNCHER_STORE_VARIABLE = "TANDEM_STORE_PORT"


def open_store(rank_env: RankEnv, timeout_s: float, log: Log = logger.warning) -> RunStore:
    """The key-value store that all processes share, at `rank_env.master_addr:master_port`; open it once per process.

    Returns once all processes have joined; `log` is called from time to time with the missing ranks. Raises GroupError
    that names them after `timeout_s` seconds. Values are authenticated with the secret in the environment, if any.
    """
    secret = store_secret()
    os.environ.update(rank_env.environment())
    deadline = time.monotonic() + timeout_s
    launcher_hosts_store = (  # torchrun or `spawn`; the store then outlives every rank
        os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        or os.environ.get(LAUNCHER_STORE_VARIABLE) == str(rank_env.master_port)
    )
    hosts_store = rank_env.rank == 0 and not launcher_hosts_store
    if not hosts_store:
        _wait_until_open(rank_env, timeout_s, log)
    store = _connect_store(rank_env, hosts_store, deadline, timeout_s, log)
    return rendezvous(RunStore(store, secret), rank_env, _left(deadline), log)


def _connect_store(rank_env: RankEnv, hosts_store: bool, deadline: float, timeout_s: float, log: Log) -> Store:
    """The TCPStore. torch waits for ever if another program accepts the connection and never answers."""
    found: list[Store | Exception] = []

    def connect() -> None:
        try:
            if hosts_store:
                found.append(host_store(rank_env.master_addr, rank_env.master_port, timeout_s))
                return
            store = TCPStore(
                rank_env.master_addr,
                rank_env.master_port,
                is_master=False,
                timeout=timedelta(seconds=timeout_s),
                wait_for_workers=False,
                multi_tenant=True,
                use_libuv=HAS_LIBUV,
            )
            found.append(store)
        except (OSError, RuntimeError, ValueError) as error:  # DistError and its subclasses derive from RuntimeError
            found.append(error)

    connecting = threading.Thread(target=connect, name="connect", daemon=True)
    connecting.start()
    connecting.join(min(REPORT_AFTER_S, _left(deadline)))
    if connecting.is_alive() and (left_s := _left(deadline)) > 0:
        where = f"{rank_env.master_addr}:{rank_env.master_port}"
        log(f"Waiting for rank 0: the listener at {where} does not answer like its store ({in_words(left_s)} left).")
        connecting.join(left_s)
    if connecting.is_alive():
        raise _store_error(rank_env, TimeoutError("the program listening there is not rank 0's store"))
    if isinstance(found[0], Exception):
        raise _store_error(rank_env, found[0]) from found[0]
    return found[0]


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _wait_until_open(rank_env: RankEnv, timeout_s: float, log: Log) -> None:
    """Wait until rank 0 listens. torch would wait as well, but silently, and fail with a C++ stack trace."""
    deadline, report_at = time.monotonic() + timeout_s, time.monotonic() + 5.0
    where = f"{rank_env.master_addr}:{rank_env.master_port}"
    while True:
        try:
            socket.create_connection((rank_env.master_addr, rank_env.master_port), PROBE_TIMEOUT_S).close()
        except OSError as error:
            cause = _why_unreachable(error)
        else:
            return
        now = time.monotonic()
        if now >= deadline:
            missing = f"rank 0 at {where} did not join ({cause}); present: rank {rank_env.rank} on {hostname()}"
            raise rendezvous_timeout(missing, timeout_s)
        if now >= report_at:
            report_at = now + 30.0
            log(f"Waiting for rank 0 at {where} (at most {in_words(deadline - now)} more): {cause}.")
        time.sleep(0.2)


def _why_unreachable(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "the host name cannot be resolved here"
    if isinstance(error, ConnectionRefusedError):
        return "nothing listens there yet"
    if isinstance(error, TimeoutError):
        return "no answer: a firewall or a wrong address"
    return error.strerror or str(error)


def _store_error(rank_env: RankEnv, error: Exception) -> GroupError:
    where = f"{rank_env.master_addr}:{rank_env.master_port}"
    if "EADDRINUSE" in str(error) or "in use" in str(error):
        return GroupError(
            f"port {rank_env.master_port} is in use on {hostname()}, so the processes cannot connect there.",
            "Set initial_port (MASTER_PORT) to another port on every machine, or stop the program that uses it.",
        )
    return GroupError(
        f"{rank_env.world_size} processes could not connect at {where}: {error_summary(error)}",
        "Check that the address belongs to rank 0's machine and that no other program listens on the port.",
    )
