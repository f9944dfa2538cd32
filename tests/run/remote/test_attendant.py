"""The program beside a copy, with another machine whose ssh is a shell here."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modules.config import ConfigError, TrainConfig, save_config
from modules.files import Record
from modules.run import RunFolder
from modules.run.folder.pidfile import find_launcher
from modules.run.hosts.description import describe_this_machine
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, find_hosts, read_hosts
from modules.run.hosts.ssh_command import HostError
from modules.run.queue.folder import RunQueue
from modules.run.remote import attendant
from modules.run.remote.attendant import attend, go_on, new_start_id, send_data, start_there
from modules.run.remote.copy_folders import copies_of, remember_copies_in
from modules.run.remote.kept_commands import keep_command, let_wait, waiting_command
from modules.run.remote.link import Link, LinkLost, connect
from modules.run.remote.machine import clean
from modules.run.remote.parts import for_machines, send_to_all
from modules.run.remote.run_copy import Copy, mark_copy, read_copy
from modules.run.remote.sending import Push
from scripts import hosts, remote
from tests.conftest import draw_images
from tests.runs import TINY, tiny_config

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in for ssh is a shell script")


def silent(_line: str) -> None:
    """Nobody listens."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tandem's folder on beta, whose train.py ends at once."""
    place, ssh = tmp_path / "there", tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{ssh.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(attendant, "described", lambda host: (describe_this_machine(),) * 2)  # there is no torch there
    (place / "code" / "scripts").mkdir(parents=True)
    (place / "code" / "scripts" / "train.py").write_text("")
    (place / ".tandem").write_text("")
    add_host(Host.make("beta", "me@beta", f"{place}/code", python=sys.executable))
    return place


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """Of a run that is to train on beta."""
    (tmp_path / "images").mkdir()
    made = RunFolder(tmp_path / "runs" / "x")
    made.make_directories()
    save_config(tiny_config(draw_images(tmp_path / "images", 2), tmp_path, family="classifier"), made.config_file)
    return made


def stage_of(folder: RunFolder, copy: Copy) -> str:
    """How far a copy comes."""
    mark_copy(folder, copy)
    attend(folder.path, silent)
    found = read_copy(folder)
    assert found is not None
    assert found.attended, "the window goes on with it from now on"
    return f"{found.stage} {found.id}"


def test_a_config_is_checked_there(
    home: Path, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A family file is sent for that, images are not; nothing else is left there."""
    (home / "code" / "scripts" / "train.py").write_text(
        "import json, sys; config = json.load(open(sys.argv[2])); "
        "print(config['family'], config['runs_dir'], *sys.argv[3:]); sys.exit(2)"
    )
    family = tmp_path / "mine.py"
    family.write_text(Path(TINY).read_text())
    save_config(tiny_config(tmp_path / "images", tmp_path, family=str(family)), tmp_path / "cats.json")
    check = ["check", "beta", str(tmp_path / "cats.json"), "--trust_code", "--require_multi_gpu"]
    assert remote.main(check) == 2
    said = capsys.readouterr().out
    there = home / "data" / str(family).lstrip("/")
    assert "Not on beta yet: 4 files" in said
    arguments = "--dry_run --require_multi_gpu --trust_code --remote_check no_data"
    assert f"\n{there} {home}/runs {arguments}\n" in said
    assert "Nothing was started on beta, and it could not be: see above." in said
    assert [each.name for each in (home / "data").rglob("*") if each.is_file()] == ["mine.py"]
    assert [list((home / each).iterdir()) if (home / each).exists() else [] for each in ("partial", "runs")] == [[], []]
    assert [each.name for each in folder.path.parent.iterdir()] == ["x"], "no copy is made here"
    send_data(tiny_config(tmp_path / "images", tmp_path, family=str(family)), find_hosts(["beta"])[0], "", silent)
    assert remote.main(check) == 2
    assert "--remote_check all" in capsys.readouterr().out


def test_what_is_removed_before_the_start_is_sent_again(home: Path, folder: RunFolder, tmp_path: Path) -> None:
    host = Host.make("beta", "me@beta", f"{home}/code", python=sys.executable)
    config = tiny_config(tmp_path / "images", tmp_path, family="classifier")
    push = send_data(config, host, "x", silent)
    clean(host, "", everything=False, echo=silent)
    assert not (home / "data").exists()
    start_there(folder, config, host, new_start_id(), {}, "", push, silent)
    assert [len(list((home / "data").rglob(name))) for name in ("00.png", "01.png")] == [1, 1]


def test_a_run_that_others_cannot_join_has_started_all_the_same(
    home: Path, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has ended at once, which follow shows; nobody waits for it, and the same start again is another one."""
    (home / "code" / "scripts" / "train.py").write_text("print('a fault in the settings')")
    host, other = (
        find_hosts(["beta"])[0],
        Host.make("gamma", "me@gamma", f"{tmp_path}/other/code", python=sys.executable),
    )
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".tandem").write_text("")
    config = for_machines(tiny_config(tmp_path / "images", tmp_path, family="classifier"), host, [other])
    mark_copy(folder, Copy(machine="beta", stage="sending", id="1", joined=["gamma"]))
    with pytest.raises(
        HostError, match=r"x has ended on beta .* before all had joined; its last lines: a fault in the"
    ):
        start_there(folder, config, host, "1", {}, "", [Push([], silent)] * 2, silent, [other])
    copy = read_copy(folder)
    assert copy is not None
    assert copy.stage == "running"
    (folder.commands_dir / "stop").touch()  # as Stop in the window does, which is no fault
    start_there(folder, config, host, "1", {}, "", [Push([], silent)] * 2, silent, [other])
    assert not (tmp_path / "other" / "state").exists()
    add_host(other)
    mark_copy(folder, copy.model_copy(update={"stage": "sending", "joined": []}))
    save_config(config, tmp_path / "cats.json")
    assert remote.main(["start", "beta", str(tmp_path / "cats.json"), "--with", "gamma"]) == 2
    assert "--with is 'gamma', but x has started on beta with ''" in capsys.readouterr().err


class _Waits(Push):
    """Fails at once on beta; goes on elsewhere, whatever happens, until `ends`."""

    ends = threading.Event()

    def send(self, link: Link) -> int:
        if link.name.startswith("beta"):
            raise HostError("the disk of beta is full")
        self.ends.wait()
        self._echo("all is sent")
        return 1


def test_nobody_waits_for_a_transfer_once_another_has_failed(home: Path, tmp_path: Path) -> None:
    """Such as one to a machine that is away for an hour; nor once somebody has pressed Ctrl-C. It says no more."""
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / ".tandem").write_text("")
    gamma = Host.make("gamma", "me@gamma", f"{tmp_path}/other/code", python=sys.executable)
    said = list[str]()
    with pytest.raises(HostError, match="the disk of beta is full"):
        send_to_all(
            [*find_hosts(["beta"]), gamma], lambda _, echo, share: _Waits([], echo, (), share), said.append, print
        )
    _Waits.ends.set()
    for each in threading.enumerate():
        if each.name == "send to gamma":
            each.join()
    assert said == []


def test_a_start_that_may_have_come_about_is_looked_for(home: Path, folder: RunFolder) -> None:
    (home / "state").mkdir()
    (home / "state" / "x.id").write_text("1")
    log = home / "runs" / "x" / "log"
    log.mkdir(parents=True)
    (log / "console.txt").write_text("it trained")
    assert stage_of(folder, Copy(machine="beta", stage="sending", id="1")) == "complete 1"
    assert (folder.log_dir / "console.txt").read_text() == "it trained"


def test_a_start_that_was_cut_is_typed_again(
    home: Path, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether it has come about before, or has left only folders, here and there."""
    (tmp_path / "cats.json").write_text(folder.config_file.read_text())
    start = ["start", "beta", str(tmp_path / "cats.json")]
    there = home / "runs" / "x"
    (there / "log").mkdir(parents=True)
    (home / "state").mkdir()
    (home / "state" / "x.id").write_text("1")
    mark_copy(folder, Copy(machine="beta", stage="sending", id="1"))
    assert remote.main(start) == 0
    assert "Needed there" in capsys.readouterr().out
    assert (home / "state" / "x.id").read_text() != "1"
    copy = read_copy(folder)
    assert copy is not None
    assert copy.stage == "running"
    mark_copy(folder, copy.model_copy(update={"stage": "sending"}))
    assert remote.main(start) == 0
    said = capsys.readouterr().out
    assert "Needed there" not in said
    assert "Follow it with: python scripts/remote.py follow beta x" in said
    assert remote.main(start) == 2, "this is another run of that name"


def test_a_start_whose_answer_has_not_come_keeps_its_copy(
    home: Path, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unless the machine says that it is none; a damaged file of commands is said before anything is sent."""
    (tmp_path / "cats.json").write_text(folder.config_file.read_text())
    ssh, runs = tmp_path / "bin" / "ssh", str(folder.path.parent)
    made = RunFolder(folder.path.parent / "y")
    start = ["start", "beta", str(tmp_path / "cats.json"), "--run_name", "y"]
    resume = ["start", "beta", "y", "--resume", "--runs_dir", runs]
    beta = find_hosts(["beta"])[0].model_copy(update={"then": "echo off", "idle_minutes": 20})
    commands, connects = tmp_path / "config" / "after_runs.json", ssh.read_text()

    def not_begun(*_: object, **_more: object) -> None:
        assert waiting_command("beta") is None, "called off before"
        raise KeyboardInterrupt

    def begun(*given: Any, **more: Any) -> None:
        start_there(*given, **more)
        raise KeyboardInterrupt

    def lost(*given: Any, **more: Any) -> None:
        start_there(*given, **more)
        ssh.write_text("#!/bin/sh\necho 'ssh: connect to host beta: Connection refused' >&2; exit 255\n")
        raise LinkLost("the connection to beta was lost")

    def interrupted(words: list[str], by: Callable[..., None]) -> Copy | None:
        with monkeypatch.context() as patch:
            patch.setattr(remote, "start_there", by)
            assert remote.main(words) != 0
        ssh.write_text(connects)
        return read_copy(made)

    def id_there() -> str:
        return (home / "state" / "y.id").read_text()

    keep_command("1", beta)
    commands.write_text("{")
    assert remote.main([*start, "--then", "echo off"]) == 2
    assert f"{commands} is not JSON" in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("Mend or remove that file.")
    assert [(home / each).exists() for each in ("data", "runs")] == [False, False]
    commands.unlink()

    keep_command("1", beta)
    let_wait("1", 1200)
    assert interrupted(start, not_begun) is None
    copy = interrupted(start, begun)
    assert copy == Copy(machine="beta", stage="sending", id=id_there())
    assert "y has started on beta. Its copy stays here" in capsys.readouterr().out
    assert remote.main(start) == 0
    assert "Needed there" not in capsys.readouterr().out

    (home / "runs" / "y" / "backup" / "step-000001").mkdir(parents=True)
    before = Copy(machine="beta", stage="complete", id=id_there(), attended=True)
    mark_copy(made, before)
    assert interrupted(resume, not_begun) == before
    copy = interrupted(resume, lost)
    assert copy == Copy(machine="beta", stage="sending", resumes=True, id=id_there())
    assert "Whether y has started on beta is not known: " in capsys.readouterr().out
    assert remote.main(resume) == 0
    assert read_copy(made) == Copy(machine="beta", id=copy.id)
    assert id_there() == copy.id, "it is not begun twice"


def test_a_start_that_was_stopped_before_it_came_about_is_none(home: Path, folder: RunFolder) -> None:
    stop = folder.commands_dir / "stop"
    stop.write_text("")
    assert stage_of(folder, Copy(machine="beta", stage="sending", id="1")) == "sending "
    assert not stop.exists(), "Continue starts it"
    assert not (home / "runs").exists()


def test_a_run_is_resumed_on_its_machine(
    home: Path, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the window (the attendant) and by the command; only if it has a backup there."""
    train = home / "code" / "scripts" / "train.py"
    train.write_text("import sys; print(sys.argv[1:])")
    there = home / "runs" / "x"
    (there / "log").mkdir(parents=True)
    (there / "events.jsonl").write_text("")
    (there / "log" / "console.txt").write_text("before\n")
    (there / "config.json").write_text("as it was")
    resume = ["start", "beta", "x", "--resume", "--runs_dir", str(folder.path.parent)]
    mark_copy(folder, Copy(machine="beta", stage="complete"))
    assert remote.main(resume) == 3
    assert "the run x has no backup there" in capsys.readouterr().err
    (there / "backup" / "step-000001").mkdir(parents=True)
    assert stage_of(folder, Copy(machine="beta", stage="sending", resumes=True)).startswith("complete resume-")
    assert remote.main(resume) == 0
    assert (there / "config.json").read_text() == "as it was"
    add = ["add", "beta", "me@beta", "--folder", str(home)]
    assert remote.main([*add, "--price", "-1"]) == 2
    assert "host: price is '-1.0'; use what an hour costs" in capsys.readouterr().err
    assert remote.main([*add, "--price", "2.5"]) == 0
    assert remote.main(add) == 0
    assert "price 2.5" in capsys.readouterr().out, "it is kept"
    with (home / "state" / "x.times").open("a") as times:
        times.write("start 1000\nend 8200\n")
    assert remote.main(["follow", "beta", "x", "--runs_dir", str(folder.path.parent)]) == 0
    assert "exit code 0 after 2.0 h, 5.00 at 2.5 an hour." in capsys.readouterr().out
    assert remote.main(["list", "beta"]) == 0
    assert "2.0 h, 5.00 at 2.5 an hour" in capsys.readouterr().out
    before, *starts = (folder.log_dir / "console.txt").read_text().splitlines()
    assert before == "before"
    assert len(starts) == 2
    assert all("'--resume', 'latest'" in each for each in starts)
    assert len(list((home / "data").rglob("00.png"))) == 1, "what it reads is there again"


def test_a_command_runs_here_once_all_is_here(
    home: Path, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Never while another run is active there, nor twice; the limit of hours is the run's own."""
    monkeypatch.setattr(remote, "launch_attendant", lambda copy: attend(copy.path, silent))  # in this process
    (tmp_path / "cats.json").write_text(folder.config_file.read_text())
    (home / "state").mkdir()
    (home / "runs" / "other").mkdir(parents=True)
    (home / "code" / "scripts" / "train.py").write_text("import sys; print(*sys.argv)")
    switched_off = tmp_path / "off"
    start = ["start", "beta", str(tmp_path / "cats.json"), "--run_name", "y", "--stop_after", "1.5"]
    then = ["--then", f"echo off >> {switched_off}"]
    assert remote.main([*start, "--max_minutes", "5"]) == 2
    assert remote.main([*start, "--stop_after", "-1"]) == 2
    assert remote.main([*start, "--then", " "]) == 2
    assert remote.main([*start, *then, "--idle_minutes", "-1"]) == 2
    assert remote.main([*start, "--idle_minutes", "20"]) == 2
    said = capsys.readouterr().err
    assert "--stop_after is '-1.0'; use hours from 0 to 16,666" in said
    assert "--then is ' '; use one line" in said
    assert "--idle_minutes is '-1.0'; use minutes from 0 to 1,000,000" in said
    assert "--idle_minutes is 20, and there is no command that would run after them; give one (then)" in said
    with (home / "state" / "other.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remote.main([*start, *then]) == 3
        said = "The command after y was not run: the run other is active on beta. Pull this again once that is over."
        assert said in capsys.readouterr().err
    copy = read_copy(RunFolder(folder.path.parent / "y"))
    assert copy is not None
    assert (copy.stage, copy.fault) == ("complete", said)
    assert "--max_minutes 90" in (home / "runs" / "y" / "log" / "console.txt").read_text()
    assert not switched_off.exists()
    pull = ["pull", "beta", "y", "--runs_dir", str(folder.path.parent)]
    with (home / "push.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert remote.main(pull) == 3
        assert "was not run: data is being sent to beta" in capsys.readouterr().err
    keep_command("1", find_hosts(["beta"])[0].model_copy(update={"then": "exit 7", "idle_minutes": 20}))
    let_wait("1", 1200)
    with monkeypatch.context() as alone:
        alone.setattr(remote, "needs_waiter", lambda machine: False)
        assert [remote.main([*pull, *more]) for more in (["--backups", "none"], [], [])] == [3, 0, 0]
    assert waiting_command("beta") is None, "that of a run beside it gives way"
    assert switched_off.read_text() == "off\n"
    (home / "runs" / "y" / "backup" / "step-000001").mkdir(parents=True)
    resume = ["start", "beta", "y", "--resume", "--runs_dir", str(folder.path.parent), "--stop_after", "2"]
    assert remote.main([*resume, "--then", "exit 7"]) == 3
    assert "The command after y ended with exit code 7. All results are here" in capsys.readouterr().err
    assert "--max_minutes 120" in (home / "runs" / "y" / "log" / "console.txt").read_text()


def test_a_machine_keeps_its_limit_and_its_command(home: Path, folder: RunFolder, tmp_path: Path) -> None:
    """For each start from the window, as the attendant does it, also one that resumes."""
    switched_off, train = tmp_path / "off", home / "code" / "scripts" / "train.py"
    train.write_text("import sys; print(*sys.argv)")
    add = ["add", "beta", "me@beta", "--folder", str(home)]
    assert remote.main([*add, "--stop_after", "1.5", "--then", f"echo off >> {switched_off}"]) == 0
    assert remote.main(add) == 0, "they are kept"
    assert stage_of(folder, Copy(machine="beta", stage="sending")).startswith("complete ")
    (home / "runs" / "x" / "backup" / "step-000001").mkdir(parents=True)
    assert stage_of(folder, Copy(machine="beta", stage="sending", resumes=True)).startswith("complete resume-")
    assert switched_off.read_text() == "off\noff\n"
    assert (home / "runs" / "x" / "log" / "console.txt").read_text().count("--max_minutes 90") == 2
    (tmp_path / "cats.json").write_text(folder.config_file.read_text())
    start = ["start", "beta", str(tmp_path / "cats.json"), "--run_name", "z", "--runs_dir", str(folder.path.parent)]
    assert remote.main([*start, "--stop_after", "0", "--then", "", "--max_minutes", "5"]) == 0
    console = (home / "runs" / "z" / "log" / "console.txt").read_text()
    config = json.loads((home / "runs" / "z" / "config.json").read_text())
    assert ("--max_minutes" in console, config["max_minutes"]) == (False, 5), "neither for this start"
    assert hosts.main(["add", "beta", "you@beta", f"{home}/code"]) == 0
    host = read_hosts()[0]
    assert (host.target, host.stop_after, host.then) == ("you@beta", 1.5, f"echo off >> {switched_off}")


def test_what_is_on_a_machine_is_said_before_it_is_forgotten(
    home: Path, folder: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Copies in any folder that has had one, too, and entries of its queue."""
    (home / "runs" / "dogs").mkdir(parents=True)
    mark_copy(folder, Copy(machine="beta"))
    remember_copies_in(folder.path.parent)
    remember_copies_in(tmp_path / "more")
    assert [copy.path for copy in copies_of("beta", complete=False)] == [folder.path]
    queue = RunQueue(tmp_path / "night")
    for name, place in (("owls", "beta"), ("bats", "beta"), ("here", "")):
        queue.add(TrainConfig.model_validate({"family": "classifier", "run_name": name}), place=place)
    queue.remove(2)
    would_fail = f"Entry 1 (owls) of the queue of {queue.runs_dir} is to run on beta, and would fail then."
    assert remote.main(["clean", "beta", "--all"]) == 2
    assert would_fail in capsys.readouterr().out
    assert hosts.main(["remove", "beta"]) == 2
    said = capsys.readouterr().err
    assert would_fail in said
    assert "On beta stay the runs dogs (ended, 0 bytes), Tandem's programs" in said
    assert f"Not all results of {folder.path} are here" in said
    assert "scripts/remote.py clean beta --all" in said
    add_host(Host.make("gamma", "me@gamma", "~/tandem"))  # set up by hand
    with_gamma = {"family": "classifier", "run_name": "both", "num_nodes": 2, "enable_multi_gpu": True}
    queue.add(TrainConfig.model_validate(with_gamma), hosts=["gamma"])
    assert hosts.main(["remove", "gamma"]) == 2
    said = capsys.readouterr().err
    assert f"Entry 4 (both) of the queue of {queue.runs_dir} is to run on gamma, and would fail then." in said
    assert "clean gamma" not in said
    assert hosts.main(["remove", "beta", "gamma", "--yes"]) == 0
    assert read_hosts() == []


def test_a_stop_without_a_connection_says_what_goes_on(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "runs" / "x").mkdir(parents=True)
    for words in (["stop", "beta", "x"], ["stop", "beta", "x", "--force"]):
        assert remote.main(words) == 0
        assert "It has ended already" in capsys.readouterr().out
    (tmp_path / "bin" / "ssh").write_text(
        "#!/bin/sh\necho 'ssh: connect to host beta: Connection refused' >&2; exit 255\n"
    )
    beta = find_hosts(["beta"])[0].model_copy(update={"then": "echo off", "idle_minutes": 20})
    keep_command("1", beta)
    let_wait("1", 1200)
    assert remote.main(["stop", "beta", "x", "--force"]) == 3
    said = capsys.readouterr()
    assert "x goes on there: nothing has asked it to stop. Try again" in said.err
    assert "Call it off without a connection: python scripts/remote.py add beta me@beta --then ''" in said.out
    add = ["add", "beta", "me@beta", "--folder", str(home)]
    assert remote.main([*add, "--then", "echo on", "--idle_minutes", "5"]) == 0
    assert "“echo off” is to run here once beta has been idle for 20 minutes" in capsys.readouterr().out
    assert remote.main([*add, "--then", ""]) == 0
    assert "“echo off” does not run any more." in capsys.readouterr().out
    assert waiting_command("beta") is None


def test_a_folder_that_is_only_opened_starts_no_run(home: Path, folder: RunFolder) -> None:
    """Whatever a stranger has written into it: nothing is sent. A start that has come about is gone on with."""
    mark_copy(folder, Copy(machine="beta", stage="sending", id="1", attended=True, sends_token=True))
    go_on(folder)
    assert find_launcher(folder) is None
    assert sorted(each.name for each in home.iterdir()) == [".tandem", "code"]
    (home / "state").mkdir()
    (home / "runs" / "x").mkdir(parents=True)
    for kind, text in (("id", "1"), ("exit", "0")):
        (home / "state" / f"x.{kind}").write_text(text)
    go_on(folder)
    launcher = find_launcher(folder)
    assert launcher is not None
    launcher.process.kill()


def test_results_come_although_a_machine_that_took_part_has_gone(home: Path, folder: RunFolder) -> None:
    """From the list, as one that is rented no longer; or it was added anew as one that somebody set up by hand."""
    start = {"do": "start", "run": "x", "machine": "beta", "id": "1", "config": "{}", "arguments": [], "token": ""}
    with connect(find_hosts(["beta"])[0]) as link:
        link.ask(Record, **start, python=sys.executable)  # type: ignore[arg-type]
    add_host(Host.make("by-hand", "me@gamma", "~/tandem"))
    assert stage_of(folder, Copy(machine="beta", id="1", joined=["gamma", "by-hand"])) == "complete 1"


def test_a_machine_that_is_not_in_the_list_any_more_is_said_in_the_copy(home: Path, folder: RunFolder) -> None:
    mark_copy(folder, Copy(machine="gamma"))
    with pytest.raises(ConfigError):
        attend(folder.path, silent)
    copy = read_copy(folder)
    assert copy is not None
    assert copy.fault.startswith("no machine is named 'gamma'; the list has: beta")
