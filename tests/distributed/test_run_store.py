"""The store of a run believes only ranks with its secret; what anybody else writes is refused or ignored."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from threading import Thread

import pytest
from torch._C._distributed_c10d import TCPStore

from modules.config import ConfigError, TrainConfig
from modules.distributed import RankEnv
from modules.distributed.health.exchange import Exchange
from modules.distributed.health.heartbeat import Heartbeat
from modules.distributed.health.timed_store import TimedStore
from modules.distributed.process_group import meet
from modules.distributed.run_store import RunStore, StoreFault, parse_value
from modules.distributed.startup.loopback import host_store
from modules.distributed.startup.member import Member
from modules.distributed.startup.rank_info import RankInfo
from modules.distributed.startup.rendezvous import GroupError, rendezvous
from modules.run import Failure
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.store_secret import new_secret, store_secret
from modules.training.loop.run_location import shared_run_folder

SECRET, OTHER = new_secret(), new_secret()
DAMAGED = ["", "x", "[[[[", "[" * 100_000, "1e999", "NaN", "null", "{}", '{"number": "x"}', "\x00\x1b[2J", "9" * 10_000]


@pytest.fixture(scope="module")
def server() -> Iterator[TCPStore]:
    store = host_store("127.0.0.1", 0, 20.0)
    yield store
    del store


@pytest.fixture
def raw(server: TCPStore) -> TCPStore:
    for key in server.list_keys():
        server.delete_key(key)
    return server


def test_what_a_rank_writes_is_read_by_ranks_with_the_same_secret(raw: TCPStore) -> None:
    ours, theirs = RunStore(raw, SECRET).within("a"), RunStore(raw, SECRET).within("a").clone()
    ours.set("k", "é")
    assert theirs.get("k").decode() == "é"
    assert theirs.find("k") == ours.get("k")
    assert theirs.find("another") is None
    assert not RunStore(raw, OTHER).within("a").check(["k"])
    assert theirs.set_if_absent("k", "later").decode() == "é"
    assert theirs.set_if_absent("new", "first") == b"first"
    assert [ours.add("n", 1), theirs.add("n", 1)] == [1, 2]


@pytest.mark.parametrize("forged", [b"plain", b"0" * 64, b"0" * 64 + b"plain"])
def test_a_stranger_who_knows_the_names_is_refused(raw: TCPStore, forged: bytes) -> None:
    ours = RunStore(raw, SECRET)
    ours.set("other", "value")
    (key,) = raw.list_keys()
    prefix = key.removesuffix("other")
    raw.set(prefix + "k", forged.decode())
    for read in (lambda: ours.get("k"), lambda: ours.find("k"), lambda: ours.set_if_absent("k", "mine")):
        with pytest.raises(StoreFault, match="'k' in the store was not written by a rank of this run"):
            read()
    raw.set(prefix + "k", raw.get(prefix + "other").decode())  # a genuine value under another name
    with pytest.raises(StoreFault):
        ours.get("k")


def test_a_fault_of_the_store_survives_the_way_between_processes() -> None:
    error = pickle.loads(pickle.dumps(StoreFault("x")))
    assert (error.kind, error.message) == ("network", "x")
    assert "network that nobody else reaches" in error.advice


def test_without_a_secret_values_are_plain(raw: TCPStore) -> None:
    RunStore(raw, None).set("k", "v")
    assert raw.get("k") == b"v"


@pytest.mark.parametrize("text", DAMAGED)
@pytest.mark.parametrize("kind", [Heartbeat, Member, RankInfo, Failure, dict[str, dict[str, float | None]], list[int]])
def test_a_damaged_value_is_one_sentence(kind: type[object], text: str) -> None:
    if (kind, text) in {(Failure, "{}"), (dict[str, dict[str, float | None]], "{}")}:
        return
    with pytest.raises(StoreFault) as caught:
        parse_value(kind, text, "the value")
    assert caught.value.message.startswith("the value in the store ")
    assert len(caught.value.message) < 400
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize("text", DAMAGED)
def test_watchdogs_ignore_what_none_of_them_has_written(
    raw: TCPStore, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = RunStore(raw, None).within("tandem")
    timed = TimedStore(store, 5.0)
    exchange = Exchange(timed, 0, 2)
    for key in ("heartbeat/1", "snapshot/1", "failure"):
        store.set(key, text or " ")
    with caplog.at_level(logging.WARNING, logger="tandem"):
        for _ in range(2):
            assert exchange.heartbeats([0, 1]) == {}
            assert exchange.snapshots([0, 1]) == {}
            assert exchange.failure() is None
    assert len([record for record in caplog.records if "Ignored: " in record.message]) == 3
    own = Failure(1, "alpha", "hang", "It hangs.")
    assert exchange.publish(own) == own
    assert exchange.failure() == own
    timed.close()


def test_a_failure_of_a_rank_that_does_not_exist_is_ignored(raw: TCPStore) -> None:
    store = RunStore(raw, SECRET).within("tandem")
    timed = TimedStore(store, 5.0)
    store.set("failure", json.dumps(asdict(Failure(7, "alpha", "stopped", "x"))))
    assert Exchange(timed, 0, 2).failure() is None
    timed.close()


@pytest.mark.timeout(120)  # they know it before the start-up timeout of 600 s
def test_ranks_that_have_another_secret_are_named_on_both_sides(raw: TCPStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(rendezvous.__globals__, "OTHER_SECRET_AFTER_S", 0.2)
    monkeypatch.setitem(rendezvous.__globals__, "RANK_0_LEAVES_LATER_S", 0.3)
    found: dict[int, str] = {}

    def join(rank: int, secret: str | None) -> None:
        store = RunStore(raw.clone(), secret)  # type: ignore[attr-defined]  # missing in torch's stubs
        try:
            rendezvous(store, RankEnv(rank, rank, 2, "127.0.0.1", 1), 600.0, lambda text: None)
        except GroupError as error:
            found[rank] = str(error)

    def meet(first: str | None, second: str | None) -> dict[int, str]:
        found.clear()
        threads = [Thread(target=join, args=(rank, secret)) for rank, secret in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return dict(found)

    said = meet(SECRET, OTHER)
    assert f"rank 1 has another {STORE_SECRET} (rank 0 on " in said[0]
    assert f"rank 0 has another {STORE_SECRET} (rank 1 on " in said[1]
    assert "openssl rand -hex 16" in said[0]
    said = meet(SECRET, None)
    assert "rank 1 has no TANDEM_STORE_SECRET, but this rank has one" in said[0]
    assert "rank 0 has a TANDEM_STORE_SECRET, but this rank has none" in said[1]
    assert not any(secret in text for secret in (SECRET, OTHER) for text in said.values())
    assert meet(SECRET, SECRET) == {}


def test_a_secret_that_can_be_guessed_is_refused_without_showing_it() -> None:
    assert store_secret({}) is None
    assert store_secret({STORE_SECRET: SECRET}) == SECRET
    with pytest.raises(ConfigError) as caught:
        store_secret({STORE_SECRET: "hunter2"})
    assert "has 7 characters" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"path": "/etc"}, "which is not in runs_dir"),
        ({"path": "RUNS/../secrets"}, "which is not in runs_dir"),
        ({"path": "RUNS"}, "which is not in runs_dir"),
        (["/etc"], "the run folder of rank 0 in the store is wrong"),
        ({"path": 3}, "the run folder of rank 0 in the store is wrong"),
        ({"path": "", "refusal": "full\x1b[2J", "advice": ""}, "full\\x1b"),
    ],
)
def test_a_run_folder_elsewhere_is_refused(raw: TCPStore, tmp_path: Path, sent: object, said: str) -> None:
    store, config = RunStore(raw, SECRET), TrainConfig(runs_dir=str(tmp_path / "runs"))
    store.set("run_folder", json.dumps(sent).replace("RUNS", str(tmp_path / "runs")))
    ranks = [RankEnv(rank, rank, 2, "127.0.0.1", 1) for rank in range(2)]
    store.descriptions = tuple(json.dumps(asdict(Member.of_this_process(each))).encode() for each in ranks)
    rank_env = ranks[1]
    with pytest.raises((ConfigError, StoreFault)) as caught:
        shared_run_folder(config, rank_env, store, None)
    assert said in str(caught.value)
    published = Exchange(TimedStore(meet(ranks[0], 1.0, store).store, 5.0), 0, 2).failure()
    is_own = "runs_dir" in said  # else rank 0 knows
    assert (published is not None and said in published.message and published.rank == 1) == is_own
    store.set("run_folder", json.dumps({"path": str(tmp_path / "runs" / "x")}))
    assert shared_run_folder(config, rank_env, store, None).path == tmp_path / "runs" / "x"
    backup = tmp_path / "elsewhere" / "y" / "backup" / "step-1"
    store.set("run_folder", json.dumps({"path": str(tmp_path / "elsewhere" / "y")}))
    assert shared_run_folder(config, rank_env, store, str(backup)).path.name == "y"
    with pytest.raises(ConfigError):
        shared_run_folder(config, rank_env, store, None)
