"""Machine 0's door over real sockets: who is let in, who is not, and what people read on both sides."""

from __future__ import annotations

import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from modules.config import ConfigError, DataError, TrainConfig
from modules.run.join import fingerprint
from modules.run.join import host as join_host
from modules.run.join import invitation as join_invitation
from modules.run.join import talk as join_talk
from modules.run.join.fingerprint import all_listings, code_listing, digest, package_listing
from modules.run.join.guest import join_run
from modules.run.join.host import JoinHost
from modules.run.join.invitation import Invitation, invitation_by_number, knock
from modules.run.join.line import LineClosed, WrongToken, greet_host
from modules.run.join.roll_call import JoinError, RollCall, Visitor
from modules.run.join.rules import shared_settings
from modules.run.join.strangers import Strangers
from modules.run.join.talk import Talk
from modules.run.run_folder import RunFolder
from modules.run.start import start_run
from tests.ports import free_port


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A data set of two files."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"12345")
    (folder / "a.txt").write_text("a caption")
    return folder


class Door:
    """A host in this process, and guests that speak to it as another machine would."""

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.said: list[str] = []
        self.host = JoinHost(config, "x", self.said.append)
        self._ends = ExitStack()

    def connect(self, token: str | None = None) -> Talk:
        connection = socket.create_connection(("127.0.0.1", self.host.port), timeout=10)
        self._ends.callback(connection.close)
        talk = Talk(greet_host(connection, self.host.token if token is None else token, 10))
        self._ends.callback(talk.close)
        return talk

    def arrive(self, name: str, **more: object) -> Talk:
        talk = self.connect()
        known = {"code": code_listing(), "packages": package_listing(), "config": None, "number": None}
        talk.send("arrive", **{"host": name, **known, **more})
        return talk

    def enter(self, name: str, *, processes: int = 1, config: TrainConfig | None = None, **more: object) -> Talk:
        talk = self.arrive(name, **more)
        talk.expect("welcome")
        talk.send("ready", processes=processes, digests=[digest(each) for each in all_listings(config or self.config)])
        return talk

    def refusal(self, talk: Talk) -> str:
        message = talk.expect("refused", "list")
        assert message["type"] == "refused"
        return str(message["message"])

    def wait_for(self, *parts: str) -> str:
        """Wait until a line with all these parts was said on machine 0."""
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            for line in self.said:
                if all(part in line for part in parts):
                    return line
            time.sleep(0.02)
        raise AssertionError(f"nobody said {parts}: {self.said}")

    def close(self) -> None:
        self._ends.close()
        self.host.close()


@pytest.fixture
def door(pictures: Path) -> Iterator[Callable[..., Door]]:
    """Opens the door of a run on `machines` machines."""
    opened: list[Door] = []

    def open_door(machines: int = 2, **settings: object) -> Door:
        data = {"num_nodes": machines, "enable_multi_gpu": True, "concepts": [{"path": str(pictures)}], **settings}
        data.setdefault("initial_port", free_port())
        opened.append(Door(TrainConfig.model_validate(data)))
        return opened[-1]

    yield open_door
    for each in opened:
        each.close()


def test_all_machines_come_and_start_together(door: Callable[..., Door]) -> None:
    here = door(3)
    beta = here.enter("beta", processes=2)
    assert "beta (127.0.0.1) has joined as machine 1 with 2 processes. Still missing: machine 2." in here.wait_for(
        "beta"
    )
    assert beta.expect("news")["missing"] == "machine 2"
    gamma = here.enter("gamma")
    assert here.wait_for("gamma").endswith("as machine 2 with 1 process.")
    assert here.host.wait(20) == {1: 2, 2: 1}
    here.host.begin([4, 2, 1], 5555)
    for talk in (beta, gamma):
        start = talk.expect("start")
        assert (start["counts"], start["port"]) == ([4, 2, 1], 5555)
        talk.send("leave", is_done=True, reason="")
    here.host.close("rank 3 failed")
    assert len(here.said) == 2, "an end that is right needs no words here"


def test_the_welcome_holds_everything(door: Callable[..., Door]) -> None:
    here = door(2, learning_rate=0.5)
    welcome = here.arrive("beta").expect("welcome")
    assert (welcome["number"], welcome["machines"], welcome["run_name"], welcome["resume"]) == (1, 2, "x", "")
    assert TrainConfig.model_validate(welcome["config"]) == here.config


def test_the_absent_are_named(door: Callable[..., Door]) -> None:
    here = door(4)
    here.enter("beta", number=2)
    here.wait_for("beta", "joined")
    here.arrive("delta", number=3).expect("welcome")
    with pytest.raises(JoinError) as caught:
        here.host.wait(0.5)
    assert caught.value.message == (
        "not every machine came within 0 s (joined: machine 2 = beta (127.0.0.1); still being checked: "
        "delta (127.0.0.1); missing: machines 1 and 3)"
    )


def test_a_wrong_token_is_told_once(door: Callable[..., Door]) -> None:
    here = door()
    for _ in range(5):
        with pytest.raises(WrongToken):
            here.connect("0" * 24)
    here.wait_for("Somebody at 127.0.0.1 was not let in: the token was wrong.")
    here.enter("beta")
    here.wait_for("beta", "joined")
    assert len(here.said) == 2


def test_a_flood_of_strangers_keeps_nobody_out(door: Callable[..., Door]) -> None:
    here = door()
    with ExitStack() as strangers:
        for number in range(200):
            connection = strangers.enter_context(socket.create_connection(("127.0.0.1", here.host.port)))
            if number % 2:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n" * 1000)
        here.enter("beta")  # at the first try, while the strangers hold their connections
        here.wait_for("beta", "joined")
    assert here.host.wait(5) == {1: 1}
    assert len(here.said) == 1


@pytest.mark.parametrize(
    "arrival",
    [{"code": 5}, {"packages": []}, {"number": "one"}, {"number": True}, {"code": None}, {"host": None, "number": 1.5}],
)
def test_a_machine_that_talks_nonsense(door: Callable[..., Door], arrival: dict[str, Any]) -> None:
    here = door()
    talk = here.arrive("beta", **arrival)
    with pytest.raises(LineClosed):
        talk.expect("welcome")
    here.wait_for("does not understand")
    talk = here.arrive("beta")
    talk.expect("welcome")
    talk.send("ready", processes=None, digests="x")
    with pytest.raises(LineClosed):
        talk.expect("start")
    here.enter("gamma")
    here.wait_for("gamma", "joined as machine 1")


@pytest.mark.parametrize("processes", [-5, 0, True, 1025, 1.0, "2"])
def test_a_machine_with_an_odd_number_of_processes(door: Callable[..., Door], processes: Any) -> None:
    here = door()
    with pytest.raises(LineClosed):
        here.enter("beta", processes=processes).expect("start")
    here.wait_for("does not understand", "how many processes it brings", "Still missing: machine 1.")


def test_differing_code_names_the_file(door: Callable[..., Door]) -> None:
    here = door()
    code = {**code_listing(), "modules/run/join/guest.py": "other"}
    sentence = here.refusal(here.arrive("beta", code=code))
    assert sentence == "Tandem's code on beta differs from machine 0's in modules/run/join/guest.py"
    assert f"beta (127.0.0.1) was not let in: {sentence}. Still missing: machine 1." in here.wait_for("beta")
    here.enter("beta", code=code, allow_differences=True)
    here.wait_for("beta", "joined")
    here.wait_for("Note: Tandem's code on beta differs")


def test_differing_packages_are_told_by_severity(door: Callable[..., Door]) -> None:
    here = door()
    assert "torch is 1.0 on beta" in here.refusal(here.arrive("beta", packages={**package_listing(), "torch": "1.0"}))
    here.enter("beta", packages={**package_listing(), "numpy": "1.0"})
    here.wait_for("Note: numpy is 1.0 on beta")


def test_differing_pictures_are_named(door: Callable[..., Door], pictures: Path, tmp_path: Path) -> None:
    here = door()
    other = tmp_path / "other"
    shutil.copytree(pictures, other)
    (other / "a.txt").write_text("another caption")
    (other / "b.png").touch()
    config = here.config.model_copy(
        update={"concepts": (here.config.concepts[0].model_copy(update={"path": str(other)}),)}
    )
    talk = here.enter("beta", config=config)
    assert talk.expect("list")["which"] == [0]
    talk.send("listings", listings=[fingerprint.data_listing(config.concepts[0])])
    assert here.refusal(talk).endswith("2 files differ: a.txt, b.png (only on beta)")
    here.wait_for("was not let in: the data set (concepts.0,", "b.png (only on beta)")


def test_differing_settings_are_named(door: Callable[..., Door]) -> None:
    here = door(2, seed=5)
    own = here.config.model_copy(update={"node_rank": 1, "cache_dir": "elsewhere", "learning_rate": 0.5})
    talk = here.arrive("beta", number=1, config=shared_settings(own))
    assert here.refusal(talk) == (
        f"the settings are not the same: learning_rate is 0.5 on beta and {here.config.learning_rate} on machine 0"
    )
    here.enter("beta", number=1)
    here.wait_for("beta", "joined as machine 1")


def test_numbers_are_given_once(door: Callable[..., Door], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_host, "_SEAT_PATIENCE_S", 0.1)
    here = door(3)
    here.enter("beta", number=2)
    here.wait_for("beta", "machine 2")
    assert "machine 2 is beta (127.0.0.1) already" in here.refusal(here.arrive("gamma", number=2))
    assert "its number is 3, but this run has the machines 0 to 2" in here.refusal(here.arrive("gamma", number=3))
    here.enter("gamma")
    here.wait_for("gamma", "machine 1")
    assert "all 3 machines are here already" in here.refusal(here.arrive("delta"))


def test_a_machine_that_goes_away_is_missed(door: Callable[..., Door], monkeypatch: pytest.MonkeyPatch) -> None:
    here = door()
    here.enter("beta").close()
    assert "Still missing: machine 1." in here.wait_for("beta (127.0.0.1), machine 1, has gone")
    talk = here.enter("gamma")
    here.wait_for("gamma", "joined as machine 1")
    talk.send("leave", reason="it was stopped")
    here.wait_for("gamma (127.0.0.1), machine 1, has left: it was stopped")
    monkeypatch.setattr(join_talk, "SILENT_S", 0.5)
    monkeypatch.setattr(Talk, "_ping", lambda self: None)  # the cable was pulled: nothing comes, nothing ends
    here.enter("delta")
    here.wait_for("delta (127.0.0.1), machine 1, has gone (no sign of life")


def test_only_an_elastic_run_takes_a_machine_back(door: Callable[..., Door]) -> None:
    static = door()
    static.enter("beta")
    static.host.wait(20)
    static.host.begin([1, 1], 5555)
    assert "has already started" in static.refusal(static.arrive("beta"))
    elastic = door(rendezvous="elastic", max_restarts=2)
    first = elastic.enter("beta", processes=2)
    elastic.host.wait(20)
    elastic.host.begin([1, 2], 5555)
    first.expect("start")
    first.close()
    elastic.wait_for("beta (127.0.0.1), machine 1, has gone", "It may come back with the same line.")
    assert "machine 1 had 2 processes when the run began, and now 1" in elastic.refusal(elastic.enter("beta"))
    again = elastic.arrive("beta")
    assert again.expect("welcome")["resume"] == "latest"
    again.send("ready", processes=2, digests=[digest(each) for each in all_listings(elastic.config)])
    assert again.expect("start")["counts"] == [1, 2]


def test_a_run_without_its_pictures_waits_for_nobody(door: Callable[..., Door], tmp_path: Path) -> None:
    here = door(concepts=[{"path": str(tmp_path / "nowhere")}])
    with pytest.raises(DataError, match="no folder"):
        here.host.wait(30)


def test_the_next_port_is_taken(door: Callable[..., Door]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        here = door(initial_port=taken - 1)
        assert here.host.port > taken
        here.enter("beta")
        here.wait_for("beta", "joined")


def refused(wanted: str, **settings: object) -> pytest.ExceptionInfo[Any]:
    with pytest.raises((ConfigError, DataError, JoinError)) as caught:
        join_run(Invitation.of(**settings), lambda line: None)  # type: ignore[arg-type]
    assert wanted in str(caught.value)
    return caught


def test_what_the_joining_side_reads(door: Callable[..., Door], pictures: Path, tmp_path: Path) -> None:
    here = door(runs_dir=str(tmp_path / "runs"))
    address = f"127.0.0.1:{here.host.port}"
    refused("it must be HOST or HOST:PORT", address="a b", token="0" * 24)
    refused("--join needs --token", address=address, token=None)
    refused("The token is not that of the run at".lower(), address=address, token="0" * 24)
    refused("no run waits for machines", address="127.0.0.1:9", token="0" * 24, patience_s=0)
    refused("'a..b' is neither a host name nor an IP address", address="a..b", token="0" * 24)
    refused("Copy the whole line from machine 0", address=address, token=here.host.token[:10])
    refused("other things than plain letters and digits", address=address, token="0" * 23 + "\u00fc")
    mine = {"address": address, "token": here.host.token}
    refused("learning_rate belongs to the whole run", **mine, settings=("learning_rate=1",))
    refused("concepts: there is no folder", **mine, settings=("concepts.0.path=/nowhere",))
    here.wait_for("has left: concepts: there is no folder '/nowhere'")
    own_family = tmp_path / "mine.py"
    own_family.write_text("raise SystemExit('never run')")
    refused("is not the same here as on", **mine, settings=(f"family={own_family}",))
    other = tmp_path / "other"
    shutil.copytree(pictures, other)
    (other / "a.png").write_bytes(b"longer than before")
    caught = refused("1 file differs: a.png", **mine, settings=(f"concepts.0.path={other}",))
    assert caught.value.exit_code == 4
    assert list((tmp_path / "runs" / "x").glob("machine-1.json"))


def test_who_waits_for_machine_0_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(join_invitation, "_SILENT_S", 0.1)
    said: list[str] = []
    with pytest.raises(ConfigError, match="no run waits for machines"):
        knock(Invitation.of("127.0.0.1:9", "0" * 24, patience_s=1.0), said.append)
    assert said == ["Nobody answers there yet; trying for 1 s."]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")
def test_ctrl_c_counts_also_in_what_a_script_has_started_in_the_background() -> None:
    """There SIGINT is ignored from the beginning; nohup ignores SIGHUP, and that is meant."""
    number = {name: signal.signal(name, signal.SIG_IGN) for name in (signal.SIGINT, signal.SIGHUP)}
    try:
        with join_talk.stoppable():
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(join_talk.Stopped) as stop:
                signal.raise_signal(signal.SIGINT)
        assert stop.value.exit_code == 130
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN, "as before"
    finally:
        for name, handler in number.items():
            signal.signal(name, handler)


def test_a_stopped_host_does_not_wait_for_its_look_at_the_pictures(
    monkeypatch: pytest.MonkeyPatch, door: Callable[..., Door]
) -> None:
    """A million captions on a slow disk take minutes, in which Python would not end."""
    still = threading.Event()
    monkeypatch.setattr(join_host, "all_listings", lambda config: [still.wait()])
    door()
    (looking,) = [each for each in threading.enumerate() if each.name == "pictures"]
    assert looking.daemon
    still.set()


def test_the_run_does_not_meet_at_the_port_where_machines_join(
    monkeypatch: pytest.MonkeyPatch, pictures: Path, tmp_path: Path
) -> None:
    """The port after the one in use is free when the run is planned, and the door takes it."""

    def stopped(self: JoinHost, within_s: float) -> dict[int, int]:
        raise join_talk.Stopped(130)

    monkeypatch.setattr(JoinHost, "wait", stopped)
    port, said = free_port(), list[str]()
    settings = {"concepts": [{"path": str(pictures)}], "runs_dir": str(tmp_path / "runs")}
    config = TrainConfig.model_validate({"num_nodes": 2, "enable_multi_gpu": True, "initial_port": port, **settings})
    with socket.create_server(("", port)):
        assert start_run(config, RunFolder.create(config), said.append) == 130
    whole = "\n".join(said)
    assert f":{port + 1} --token" in whole
    assert f"instead of {port}, which is in use" in whole
    assert f"port {port + 1} instead" not in whole


def test_strangers_of_one_address_make_room_for_each_other_only() -> None:
    strangers = Strangers()
    with ExitStack() as ends:
        pairs = [[ends.enter_context(end) for end in socket.socketpair()] for _ in range(12)]
        for number, (_, ours) in enumerate(pairs):
            strangers.add(ours, "10.0.0.2" if number == 0 else "10.0.0.3")
        for number, (theirs, _) in enumerate(pairs):
            theirs.settimeout(0.0)
            if 1 <= number <= 3:
                assert theirs.recv(1) == b"", "the oldest of the crowded address have ended"
            else:
                with pytest.raises(BlockingIOError):
                    theirs.recv(1)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("a.b", "a.b", 12356), ("10.0.0.1:80", "10.0.0.1", 80), ("[::1]:80", "::1", 80), ("fe80::1", "fe80::1", 12356)],
)
def test_addresses(address: str, host: str, port: int) -> None:
    made = Invitation.of(address, "0" * 24)
    assert (made.host, made.port) == (host, port)
    for wrong in ("", "a:", "a:b", "a:99999", ":80", "a b"):
        with pytest.raises(ConfigError, match="--join is"):
            Invitation.of(wrong, "0" * 24)


def test_a_numbered_machine_needs_the_token() -> None:
    config = TrainConfig(num_nodes=2, node_rank=1, master_addr="zeus", enable_multi_gpu=True)
    with pytest.raises(ConfigError, match="node_rank is 1, but --token is missing"):
        invitation_by_number(config, None)
    made = invitation_by_number(config, "0" * 24)
    assert (made.host, made.port, made.config) == ("zeus", 12356, config)


def test_the_roll_in_words() -> None:
    roll = RollCall(5)
    assert roll.summary() == "joined: nobody; missing: machines 1, 2, 3 and 4"
    assert [roll.take(Visitor(name, "a"), wanted, 0) for name, wanted in (("x", 3), ("y", None), ("z", 3))] == [
        3,
        1,
        None,
    ]
    roll.ready(1, 1)
    assert roll.missing() == "machines 2, 3 and 4"
    roll.leave(1)
    assert roll.missing() == "machines 1, 2, 3 and 4"
