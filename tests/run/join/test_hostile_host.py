"""Machine 0 as an attacker: what its config may read and write on a machine that joins it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config import ConfigError, TandemError, TrainConfig, dump, trusted_code, validate
from modules.run.join import fingerprint
from modules.run.join.allowed_paths import FOR_MACHINE_0, VARIABLE, check_paths, path_settings
from modules.run.join.channel import ChannelClosed, Message, authenticate_client
from modules.run.join.client import join_run
from modules.run.join.fingerprint import family_identity
from modules.run.join.join_line import JoinLine
from modules.run.join.session import Session

TOKEN = "0" * 32


class HostileHost:
    """Accepts one machine, sends it a welcome of its choice, and keeps all that it gets back."""

    def __init__(self, welcome: Message, token: str = TOKEN, start: Message | None = None) -> None:
        self._welcome, self._start = welcome, start
        self._token = token
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.received: list[Message] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._server.accept()
        session = Session(authenticate_client(connection, self._token, 10))
        try:
            session.expect("hello")
            session.send("welcome", **self._welcome)
            while True:
                message = session.expect("ready", "leave", "listings")
                self.received.append(message)
                if message["type"] == "leave":
                    return
                if message["type"] == "listings":
                    session.send("rejected", message="no\x1b[2J\nJoined.", advice="a\nb", kind="data", only_there=[])
                else:
                    if self._start:
                        session.send("start", **self._start)
                    session.send("request_listings", which=[*range(len(message["digests"])), 7, -1, "0"] * 3)
        except ChannelClosed:
            return
        finally:
            session.close()

    def result(self) -> str:
        """All that the guest has sent after its hello."""
        self._thread.join(20)
        self._server.close()
        return json.dumps(self.received)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The guest's home, where it joins, with a secret."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id_of_me.png").write_bytes(b"x" * 4321)
    for name in ("id_of_me.txt", "id_of_me.py"):
        (home / ".ssh" / name).write_text("a private word")
    monkeypatch.chdir(home)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(home / "settings"))
    monkeypatch.delenv(VARIABLE, raising=False)
    return home


@pytest.fixture
def attack(home: Path) -> Callable[..., tuple[str, str]]:
    """Lets the guest join a host with this config; what it tells its user and the host."""

    def attacked(
        changes: dict[str, object],
        *,
        more: dict[str, object] | None = None,
        start: Message | None = None,
        token: str = TOKEN,
        **line: object,
    ) -> tuple[str, str]:
        config = {**dump(TrainConfig()), "num_nodes": 2, "enable_multi_gpu": True, **changes}
        welcome = {"host": "zeus", "number": 1, "machines": 2, "config": config, "run_name": "x", "nonce": "n"}
        host = HostileHost({**welcome, "family": str(config["family"]), "notes": [], **(more or {})}, token, start)
        ask, ask_about_code = line.pop("ask", None), line.pop("ask_about_code", None)
        with pytest.raises(TandemError) as refused:
            join_run(JoinLine.parse(host.address, token, **line), lambda text: None, ask, ask_about_code)  # type: ignore[arg-type]
        return str(refused.value), host.result()

    return attacked


PATHS = {
    "a model": {"base_model": "~/.ssh"},
    "images": {"concepts": [{"path": "~/.ssh"}]},
    "a LoRA": {"method": "lora", "lora_from": ".ssh/id_of_me.txt"},
    "a family's option": {"family_options": {"layout": {"from": ["~/.ssh"]}}},
    "a way round": {"base_model": "runs/../.ssh"},
    "a file as if it were a folder": {"base_model": ".ssh/id_of_me.txt/"},
    "a family": {"family": ".ssh/id_of_me.py"},
    "a family as if it were a folder": {"family": ".ssh/id_of_me.py/"},
}


@pytest.mark.parametrize("changes", PATHS.values(), ids=PATHS)
def test_no_path_is_read_that_nobody_allowed(
    attack: Callable[..., tuple[str, str]], home: Path, changes: dict[str, object]
) -> None:
    (home / "runs").mkdir()
    told, sent = attack(changes)
    assert "which nobody has allowed on this machine" in told
    assert "--allow" in told
    assert "id_of_me" not in sent
    assert ".ssh" not in sent, "not even that it exists"
    asked: list[str] = []
    attack(changes, ask=lambda question: bool(asked.append(question)))
    assert str(home / ".ssh") in asked[0]


@pytest.mark.slow
def test_missing_and_forbidden_paths_look_the_same_to_the_host(
    attack: Callable[..., tuple[str, str]], home: Path
) -> None:
    missing = attack({"concepts": [{"path": "/nowhere/at/all"}]})
    forbidden = attack({"concepts": [{"path": "~/.ssh"}]})
    assert "there is no folder '/nowhere/at/all'" in missing[0]
    assert missing[1] == forbidden[1]
    assert FOR_MACHINE_0 in missing[1]
    for guess in ("0123456789abcdef", fingerprint._text_hash(home / ".ssh" / "id_of_me.py")):
        told, sent = attack({"family": ".ssh/id_of_me.py"}, more={"family": guess})
        assert "which nobody has allowed on this machine" in told, "before anything of it is read"
        assert sent == missing[1]
    told, sent = attack({"family": "/nowhere/at/all.py"})
    assert "there is no file '/nowhere/at/all.py'" in told
    assert sent == missing[1]


def test_questions_show_names_and_paths_as_they_are(attack: Callable[..., tuple[str, str]], home: Path) -> None:
    """The names inside family_options are machine 0's, too; an access token in a path belongs to the path."""
    folder = home / f"hf_{'a' * 30}\x1b[2J"
    folder.mkdir()
    asked: list[str] = []
    config = TrainConfig.model_construct(family_options={"x": {"\x1b[2Jy": str(folder)}})
    with pytest.raises(ConfigError) as refused:
        check_paths(config, [], "", (), lambda question: bool(asked.append(question)))
    assert asked == [f"family_options.x.\\x1b[2Jy: {home}/hf_{'a' * 30}\\x1b[2J"]
    assert "\x1b" not in str(refused.value)


def test_the_guest_writes_only_below_its_own_folders(
    attack: Callable[..., tuple[str, str]], home: Path, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    folders = {"runs_dir": str(elsewhere / "runs"), "cache_dir": str(elsewhere / "cache")}
    attack(folders)
    assert not elsewhere.exists()
    assert (home / "runs" / "x").is_dir()
    told, _ = attack(folders, more={"run_name": "../../escape"})
    assert "run_name" in told
    assert not (home.parent / "escape").exists()


def test_the_guests_other_runs_are_left_alone(attack: Callable[..., tuple[str, str]], home: Path) -> None:
    """Machine 0 names the run, so its name may be that of a run of the guest, which it has joined or made itself."""
    attack({}, more={"run_name": "joined"}, token="1" * 32)
    (home / "runs" / "own" / "backup").mkdir(parents=True)
    (home / "runs" / "own" / "config.json").write_text("{}")
    before = contents(home / "runs")
    for name in ("own", "joined"):
        for proofs in ([], ["0" * 64], ["x", ""]):
            told, sent = attack({}, more={"run_name": name, "folder_proofs": proofs}, token="2" * 32)
            assert f"machine 0's run is named '{name}', but the folder" in told
            assert FOR_MACHINE_0 in sent
    assert contents(home / "runs") == before
    (home / "runs" / "joined" / "join_keys.json").write_text('["not a key"]')
    assert "belongs to another run" in attack({}, more={"run_name": "joined"}, token="1" * 32)[0]


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    """Every file of a folder, and when it was written."""
    return {file: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.rglob("*") if file.is_file()}


def test_allowed_paths_are_asked_about_once(attack: Callable[..., tuple[str, str]], home: Path) -> None:
    """And what is sent of them cannot be read, only compared."""
    asked: list[str] = []

    def yes(question: str) -> bool:
        asked.append(question)
        return True

    changes = {"concepts": [{"path": "~/.ssh"}]}
    told, sent = attack(changes, ask=yes)
    assert "machine 0 rejected this machine: no\\x1b[2J\\nJoined. a\\nb." in told, "in one line of its own"
    assert asked == [f"concepts.0.path: ~/.ssh, which is {home / '.ssh'} here"], "as written, and where it leads"
    assert len(json.loads(sent)[1]["listings"]) == 2, "each once, however often it is asked for"
    plain = fingerprint.data_listing(TrainConfig.model_validate(changes).concepts[0])
    for name, value in plain.items():
        assert name not in sent
        assert f'"{value}"' not in sent
    _, sent = attack(changes)
    assert "listings" in sent, "the answer is remembered"
    (home / "settings" / "allowed_paths.json").unlink()
    for more in ({"allow": (str(home / ".ssh"),)}, {"settings": ("concepts.0.path=~/.ssh",)}):
        assert "listings" in attack(changes, **more)[1]


def test_every_declared_path_is_found() -> None:
    config = TrainConfig.model_validate({"concepts": [{"path": "a"}, {"path": "b"}], "base_model": "c"})
    found = dict(path_settings(config))
    assert found == {
        "base_model": "c", "concepts.0.path": "a", "concepts.1.path": "b", "runs_dir": "runs", "cache_dir": "cache",
    }  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [
        {"family_options": {"text_encoder_files": "{0},"}},
        {"family_options": {"text_encoder_files": "missing.gguf, {0}"}},
        {"samples": [{"prompt": "x", "reference": "{0};"}]},
        {"concepts": [{"path": "missing", "enabled": False, "references": "missing; {0}"}]},
    ],
)
def test_each_of_several_paths_is_asked_about(home: Path, settings: dict[str, object]) -> None:
    data = json.loads(json.dumps(settings).replace("{0}", str(home / ".ssh")))
    config = validate({"family": "flux_kontext", **data}, "the config")
    with pytest.raises(ConfigError, match=r"machine 0's config names .*/\.ssh'"):
        check_paths(config, [], "", (), None)


def test_a_backup_that_the_host_names_is_a_path_too(home: Path) -> None:
    with pytest.raises(ConfigError, match="resume: machine 0's config names"):
        check_paths(TrainConfig(), [], str(home / ".ssh"), (), None)


FALSE_WELCOMES = {
    "no config": {"config": [1]},
    "a number": {"number": -1},
    "escape codes": {"host": "\x1b]0;pwned\x07", "config": "x"},
    "no family": {"family": None},
}


@pytest.mark.parametrize("more", FALSE_WELCOMES.values(), ids=FALSE_WELCOMES)
def test_false_welcomes_are_one_sentence(attack: Callable[..., tuple[str, str]], more: dict[str, object]) -> None:
    told, _ = attack({}, more=more)
    assert "a message of machine 0 is wrong in" in told
    assert "\x1b" not in told


@pytest.mark.parametrize("counts", [[], [1], [1] * 3, [1] * 4, [0, 1], [1, 0]])
def test_a_start_of_other_machines_is_refused(attack: Callable[..., tuple[str, str]], counts: list[int]) -> None:
    told, _ = attack({}, start={"counts": counts, "port": 1024, "nonce": "n"})
    assert f"has sent {counts} as the processes of all machines, but num_nodes is 2" in told


@pytest.mark.parametrize("resume", ["--x", "\n", "a\x1b[2J", "a\u2028"])
def test_a_start_from_no_name_is_refused(attack: Callable[..., tuple[str, str]], resume: str) -> None:
    told, _ = attack({}, start={"counts": [1, 1], "port": 1024, "nonce": "n", "resume": resume})
    assert "a message of machine 0 is wrong in 'resume'" in told


def test_a_family_file_that_differs_is_refused(attack: Callable[..., tuple[str, str]], home: Path) -> None:
    (home / "mine.py").write_text("open('marker', 'w')")
    ways: list[dict[str, object]] = [
        {"settings": ("family=mine.py",)}, {"allow": ("mine.py",)}, {"trust_code": True},
    ]  # fmt: skip
    for way in ways:
        told, _ = attack({"family": "mine.py"}, more={"family": "0123456789abcdef"}, **way)
        assert "is not the same here as on zeus" in told
    assert not (home / "marker").exists()


def test_what_a_family_file_imports_must_be_the_same(attack: Callable[..., tuple[str, str]], home: Path) -> None:
    (home / "mine.py").write_text("import nets")
    (home / "nets.py").write_text("a = 1")
    same = {"family": family_identity(TrainConfig(family="mine.py"))}
    assert "is not the same" not in attack({"family": "mine.py"}, more=same, allow=("mine.py",))[0]
    (home / "nets.py").write_text("a = 2")
    assert "is not the same here as on zeus" in attack({"family": "mine.py"}, more=same, allow=("mine.py",))[0]


def test_the_guest_is_asked_about_the_code_and_the_host_is_told_where_to_allow_it(
    attack: Callable[..., tuple[str, str]], home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(trusted_code.VARIABLE, raising=False)
    (home / "mine.py").write_text("open('marker', 'w')")
    same = {"family": family_identity(TrainConfig(family="mine.py"))}
    asked: list[str] = []

    def answer(yes: bool) -> Callable[[str], bool]:
        return lambda question: bool(asked.append(question)) or yes

    told, sent = attack({"family": "mine.py"}, more=same, allow=("mine.py",), ask_about_code=answer(False))
    assert f"{home / 'mine.py'} (1 line, SHA-256 " in asked[0]
    assert "--trust_code" in told
    assert "there, join again with --trust_code" in sent
    assert str(home) not in sent
    told, sent = attack({"family": "mine.py"}, more=same, allow=("mine.py",), ask_about_code=answer(True))
    assert len(asked) == 2
    assert "--trust_code" not in told + sent, "it has gone on, to the comparison of the data"
    assert not (home / "marker").exists()
