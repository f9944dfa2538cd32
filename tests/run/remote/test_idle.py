"""A command that waits until a machine has been idle, over a real ssh, with minutes that pass at once."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from modules.config import save_config
from modules.files.private import make_private_folder, write_private_json
from modules.run import RunFolder
from modules.run.hosts.description import describe_this_machine
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host
from modules.run.hosts.ssh_command import HostError
from modules.run.remote import attendant
from modules.run.remote.after_run import run_when_idle
from modules.run.remote.attendant import attend, go_on
from modules.run.remote.copy_folders import remember_copies_in
from modules.run.remote.kept_commands import (
    keep_command,
    kept_command,
    let_wait,
    needs_waiter,
    waiting_command,
    waiting_lock,
)
from modules.run.remote.machine import host_for_runs, known_there
from modules.run.remote.run_copy import Copy, mark_copy, opened_copy, read_copy
from scripts import remote
from tests.conftest import draw_images
from tests.runs import ROOT, tiny_config
from tests.ssh_server import SshServer, skip_reason, ssh_server

pytestmark = pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "possible")


class Minutes:
    """A clock that only `pause` moves, after which the next thing happens; the last one is repeated."""

    def __init__(self, *happens: Callable[[], object]) -> None:
        self.now = 0.0
        self._happens = list(happens)

    def pause(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds
        self._happens.pop(0)()

    def wait(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The attendant waits by this clock."""
        by_it = partial(run_when_idle, pause=self.pause, clock=lambda: self.now)
        monkeypatch.setattr(attendant, "run_when_idle", by_it)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshServer]:
    """An sshd, where Tandem's folder has a train.py that ends at once."""
    with ssh_server(tmp_path / "ssh") as running:
        monkeypatch.setenv("PATH", running.path)
        monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
        monkeypatch.setattr(attendant, "described", lambda host: (describe_this_machine(),) * 2)  # no torch there
        home = running.home / ".tandem"
        (home / "code" / "scripts").mkdir(parents=True)
        (home / "code" / "scripts" / "train.py").write_text("")
        (home / "state").mkdir()
        (home / ".tandem").write_text("")
        yield running


@pytest.fixture
def beta(server: SshServer, tmp_path: Path) -> Host:
    """The machine, with a command that writes the file `off`."""
    given: dict[str, Any] = {"port": server.port, "key": str(server.key), "python": sys.executable, "price": 30}
    host = host_for_runs("beta", "root@127.0.0.1", then=f"echo off >> {tmp_path}/off", idle_minutes=2, **given)
    add_host(host)
    return host


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Of a run that is to train there."""
    (tmp_path / "images").mkdir()
    made = RunFolder(tmp_path / "runs" / "x")
    made.make_directories()
    save_config(tiny_config(draw_images(tmp_path / "images", 2), tmp_path, family="classifier"), made.config_file)
    return made


def test_it_runs_once_nothing_has_gone_on_for_its_minutes(
    server: SshServer, beta: Host, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever goes on begins the wait anew, but a start that has failed; meanwhile others may use the copy."""
    home, other, held = server.home / ".tandem", RunFolder(tmp_path / "runs" / "y"), list[Any]()
    other.make_directories()
    seen, said = list[str](), list[str]()

    def hold(name: str) -> None:
        let_go()
        held.append((home / name).open("w"))
        fcntl.flock(held[-1], fcntl.LOCK_EX)

    def let_go() -> None:
        found, copy = waiting_command("beta"), read_copy(folder)
        assert found is not None
        assert copy is not None
        assert (found[0], copy.stage) == (copy.id, "complete")
        assert not (tmp_path / "off").exists()
        seen.append(str(found[1]))
        while held:
            held.pop().close()

    def pull_again() -> None:
        let_go()
        held.append(ExitStack())
        held[-1].enter_context(opened_copy(folder.path.parent, "x", "beta"))

    def damage() -> None:
        let_go()
        remember_copies_in(tmp_path / "more")
        copies.write_text("{")
        remember_copies_in(tmp_path / "runs")

    def lack(stage: Any) -> None:
        let_go()
        mark_copy(other, Copy(machine="beta", stage=stage))

    def unreachable() -> None:
        lack("sending")
        copies.unlink()
        monkeypatch.setenv("PATH", f"{refuses.parent}{os.pathsep}{server.path}")

    def reachable() -> None:
        let_go()
        monkeypatch.setenv("PATH", server.path)

    refuses = tmp_path / "none" / "ssh"
    refuses.parent.mkdir()
    refuses.write_text("#!/bin/sh\necho 'ssh: connect to host beta: Connection refused' >&2; exit 255\n")
    refuses.chmod(0o755)
    locks = [partial(hold, name) for name in ("state/z.lock", "push.lock", "setup.lock", "use.lock")]
    goes_on: list[Callable[[], object]] = [
        *locks,
        pull_again,
        partial(lack, "running"),
        damage,
        unreachable,
        reachable,
        let_go,
    ]
    copies = tmp_path / "config" / "copies.json"
    Minutes(*goes_on).wait(monkeypatch)
    mark_copy(folder, Copy(machine="beta", stage="sending"))
    attend(folder.path, said.append)
    assert (tmp_path / "off").read_text() == "off\n"
    command, busy = f"“{beta.then}” runs here ", "once beta has been idle for 2 minutes; now "
    assert seen[0] == f"{command}in 2 minutes if beta stays idle."
    assert [each.removeprefix(f"{command}{busy}") for each in seen[1:7]] == [
        "the run z is active on beta.",
        "data is being sent to beta.",
        "beta is being set up.",
        "what is on beta is being read.",
        f"a program is at work in {folder.path}.",
        f"the results of {other.path} are not all here.",
    ]
    assert f"which folders have copies of its runs is not known, because {copies} is not JSON" in seen[7]
    assert "connect" in seen[8]
    assert seen[9] == f"{command}in 60 s if beta stays idle."
    assert "Waiting until beta has been idle for 2 minutes: data is being sent to beta." in said
    assert said[-1] == f"beta has been idle for 0.0 h, 1.00 at 30 an hour. Running: {beta.then}"
    assert waiting_command("beta") is None


def test_it_is_called_off_and_taken_up_again(
    beta: Host,
    server: SshServer,
    folder: RunFolder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launched = list[Path]()
    for module in (attendant, remote):
        monkeypatch.setattr(module, "launch_attendant", lambda copy: launched.append(copy.path))
    pull = ["pull", "beta", "x", "--runs_dir", str(folder.path.parent)]
    (server.home / ".tandem" / "runs" / "x" / "backup" / "step-000001").mkdir(parents=True)
    mark_copy(folder, Copy(machine="beta", stage="pulling", id="1", attended=True))
    keep_command("1", beta)
    assert remote.main(pull) == 0
    assert "runs here in 2 minutes if beta stays idle. A start there calls it off" in capsys.readouterr().out
    go_on(folder)
    assert launched == [folder.path] * 2, "nobody waits with it"
    code = (
        "import sys; from pathlib import Path; from modules.run.folder.run_lock import file_lock\n"
        "with file_lock(Path(sys.argv[1])) as alone: print(alone, flush=True); input()"
    )
    argv = [sys.executable, "-c", code, str(waiting_lock("beta"))]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as waiter:
        assert waiter.stdout is not None
        assert waiter.stdout.readline() == b"True\n"
        go_on(folder)
        assert not needs_waiter("beta")
        assert remote.main(["list", "beta"]) == 0
        assert f"“{beta.then}” runs here in " in capsys.readouterr().out
        waiter.communicate(b"\n")
    assert launched == [folder.path] * 2
    assert remote.main(["list", "beta"]) == 0
    assert f"“{beta.then}” is to run here once beta has been idle for 2 minutes, but no" in capsys.readouterr().out
    assert "It would not be run then." in known_there(beta, print)
    capsys.readouterr()

    assert remote.main(["stop", "beta", "x"]) == 0
    assert f"It has ended already. “{beta.then}” does not run any more." in capsys.readouterr().out
    assert waiting_command("beta") is None

    keep_command("1", beta)
    let_wait("1", 120)
    resume = ["start", "beta", "x", "--resume", "--runs_dir", str(folder.path.parent), "--then", ""]
    assert remote.main(resume) == 0
    assert "does not run any more" in capsys.readouterr().out
    assert waiting_command("beta") is None

    keep_command("1", beta)
    let_wait("1", 120)
    add_host(beta.model_copy(update={"then": f"{beta.then}; exit 7"}))
    Minutes(lambda: None, lambda: None).wait(monkeypatch)
    mark_copy(folder, Copy(machine="beta", stage="sending", resumes=True))
    with pytest.raises(HostError, match="The command after the runs on beta ended with exit code 7"):
        attend(folder.path, print)
    assert "does not run any more" in capsys.readouterr().out
    assert (tmp_path / "off").read_text() == "off\n", "that of the later start"
    copy = read_copy(folder)
    assert copy is not None
    assert "exit code 7. All results are here" in copy.fault


def test_the_wait_survives_a_full_disk_and_begins_anew_with_a_pull(
    beta: Host, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk on which nothing can be written is a folder in the place of the lock of the file."""
    lock, said = tmp_path / "config" / "after_runs.lock", list[str]()

    def full() -> None:
        lock.unlink()
        lock.mkdir()

    def pulled() -> None:
        let_wait("1", 120)

    keep_command("1", beta)
    let_wait("1", 120)
    waits = Minutes(full, lambda: None, lock.rmdir, lambda: None)
    run_when_idle(folder.path.parent, "beta", said.append, pause=waits.pause, clock=lambda: waits.now)
    assert [each for each in said if "cannot be written" in each] == [said[1]]
    assert (tmp_path / "off").read_text() == "off\n"
    assert waits.now == 180, "as soon as it can be taken"

    keep_command("1", beta)
    let_wait("1", 120)
    waits = Minutes(pulled, *[lambda: None] * 4)
    run_when_idle(folder.path.parent, "beta", said.append, pause=waits.pause, clock=lambda: waits.now)
    assert 170 < waits.now <= 181, "two minutes after the pull"


def test_commands_kept_before_there_were_idle_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    make_private_folder(tmp_path / "config")
    write_private_json(tmp_path / "config" / "after_runs.json", {"commands": {"a1": "vastai stop 7"}})
    kept = kept_command("a1")
    assert kept is not None
    assert (kept.command, kept.idle_minutes) == ("vastai stop 7", 0)
    keep_command("b2", Host(name="beta", target="10.0.0.2", folder="/opt/tandem", then="poweroff"))
    assert [each.command for each in map(kept_command, ("a1", "b2")) if each] == ["vastai stop 7", "poweroff"]
