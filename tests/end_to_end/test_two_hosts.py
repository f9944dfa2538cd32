"""Training on two machines by the real commands: two hosts with their own names and addresses, and a cable between."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modules.config import TrainConfig
from modules.run import RunFolder
from modules.run.folder.commands import request_command
from tests.conftest import draw_images
from tests.hosts import ROOT, Host, skip_reason, two_hosts
from tests.runs import Run, environment, tiny_config, train_alone, train_command

pytestmark = [
    pytest.mark.long,
    pytest.mark.end_to_end,
    pytest.mark.slow,
    pytest.mark.skipif(bool(skip_reason()), reason=skip_reason() or "possible"),
]

GUARD_S = 150
JOIN_LINE_FILE = re.compile(r"Run the line in (\S+/join_line\.txt) on")


class Terminal:
    """A command on a host and its output."""

    def __init__(self, host: Host, argv: list[str], file: Path, cwd: Path = ROOT, **variables: str) -> None:
        self._file = file
        with file.open("w") as output:
            shell = ["sh", "-c", f"cd {shlex.quote(str(cwd))} && exec {shlex.join(argv)}"]
            self.process = host.start(shell, environment(**variables), output=output)

    def text(self) -> str:
        return self._file.read_text()

    def wait_for(self, pattern: str | re.Pattern[str]) -> re.Match[str]:
        """Wait until the output matches."""
        deadline = time.monotonic() + GUARD_S
        while (match := re.search(pattern, self.text())) is None:
            assert self.process.poll() is None, f"ended before {pattern!r}:\n{self.text()}"
            assert time.monotonic() < deadline, f"no output matches {pattern!r}:\n{self.text()}"
            time.sleep(0.05)
        return match

    def join_line(self) -> str:
        """The line with which other machines join."""
        return Path(self.wait_for(JOIN_LINE_FILE)[1]).read_text().strip()

    def wait_for_step(self, run: Run, step: int) -> None:
        """Wait until this many steps are in the events."""
        deadline = time.monotonic() + GUARD_S
        while not run.folder.events_file.exists() or len(run.losses) < step:
            assert self.process.poll() is None, self.text()
            assert time.monotonic() < deadline, self.text()
            time.sleep(0.1)

    def wait(self, exit_code: int) -> str:
        """Wait for the end with this exit code; the whole output."""
        try:
            code = self.process.wait(GUARD_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running:\n{self.text()}") from None
        assert code == exit_code, f"exit code {code}:\n{self.text()}"
        text = self.text()
        assert "Traceback" not in text.replace("Full traceback:", ""), text
        return text


Open = Callable[..., Terminal]


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    """Alpha and beta."""
    with two_hosts() as both:
        yield both


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Open]:
    """Starts a command on a host; it is killed at the end."""
    opened: list[Terminal] = []

    def begin(host: Host, argv: list[str], **more: object) -> Terminal:
        file = tmp_path / f"{host.name}-{len(opened)}.txt"
        opened.append(Terminal(host, argv, file, **more))  # type: ignore[arg-type]
        return opened[-1]

    yield begin
    for each in opened:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven images."""
    return draw_images(tmp_path_factory.mktemp("few"), 11)


def two_machines(images: Path, place: Path, **settings: object) -> TrainConfig:
    """Three steps on two machines with one process each."""
    made = {"num_nodes": 2, "enable_multi_gpu": True, "processes_per_node": [1, 1], "max_steps": 3, **settings}
    return tiny_config(images, place, **made)


def run_of(config: TrainConfig) -> Run:
    return Run(RunFolder(Path(config.runs_dir) / str(config.run_name)))


def words(place: Path, line: str, *more: str) -> list[str]:
    """The command of a join line: `env` sets its variable. The folders and families of this test may be read."""
    allowed = os.pathsep.join([tempfile.gettempdir(), str(ROOT / "tests")])
    return ["env", f"TANDEM_ALLOW={allowed}", *shlex.split(line), *own_folders(place), *more]


def own_folders(place: Path) -> list[str]:
    """The arguments of a machine that shares no disk with machine 0."""
    return [word for name in ("runs_dir", "cache_dir") for word in ("--set", f"{name}={place / 'beta' / name}")]


def alive(*hosts: Host) -> list[int]:
    """Processes that are still alive after zombies have been reaped."""
    deadline = time.monotonic() + 100
    while (left := [pid for host in hosts for pid in host.processes()]) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def test_one_line_joins_and_everything_else_is_refused(
    hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path
) -> None:
    """Wrong token, setting, images and code; then the right line, with unequal counts (1 + 2) and no shared disk.

    The default route of each machine leads into a network in which the other is not.
    """
    alpha, beta = hosts
    alpha.add_default_route("vpn", "10.8.0.5")
    beta.add_default_route("wifi", "192.168.7.5")
    config = two_machines(few, tmp_path, processes_per_node=[1, 2], global_batch_size=6)
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    place = f"{alpha.address}:{config.initial_port + 1}"
    line, vpn = first.join_line(), f"10.8.0.5:{config.initial_port + 1}"
    assert f"--join {vpn}" in line
    line = line.replace(vpn, place)

    text = terminal(beta, words(tmp_path, re.sub(r"(?<=TOKEN=)\w+", "0" * 32, line))).wait(2)
    assert f"the token is not that of the run at {place}" in text
    first.wait_for(f"A connection from {beta.address} was rejected: wrong token")

    text = terminal(beta, words(tmp_path, line, "--set", "learning_rate=1")).wait(2)
    assert "learning_rate applies to the whole run, so only machine 0 can set it" in text

    other = tmp_path / "other images"
    shutil.copytree(few, other)
    (other / "03.txt").write_text("another caption")
    (other / "04.png").unlink()
    text = terminal(beta, words(tmp_path, line, "--set", f"concepts.0.path={other}")).wait(4)
    assert "2 files differ: 03.txt, 04.png (missing on beta)" in text
    first.wait_for(rf"beta \({beta.address}\) was rejected: the data set .* 04.png \(missing on beta\)")

    copy = tmp_path / "copy"
    for part in ("modules", "scripts"):
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("*.pyc.*"))
    os.symlink(ROOT / ".venv", copy / ".venv")
    with (copy / "modules" / "config" / "interval.py").open("a") as file:
        file.write("# changed\n")
    text = terminal(beta, words(tmp_path, line), cwd=copy).wait(3)
    assert "Tandem's code on beta differs from machine 0's in modules/config/interval.py" in text

    second = terminal(beta, words(tmp_path, line))
    second.wait_for("All machines have joined")
    text = first.wait(0)
    assert f"beta ({beta.address}) has joined as machine 1 with 2 processes" in text
    assert "All 2 machines have joined: 1 + 2 processes." in text
    assert f"all machines meet at {alpha.address}, where the others have joined, instead of at 10.8.0.5" in text
    assert "GLOO_SOCKET_IFNAME=cable" in text
    others = second.wait(0)
    assert "alpha (machine 0) has accepted the token; this is machine 1 of 2, for the run 'x'" in others
    assert "on this machine ranks 1 to 2" in others
    run = run_of(config)
    assert run.exit_code == 0
    assert len(run.losses) == 3
    assert len(run.events("started")[0]["devices"]) == 3  # type: ignore[arg-type]
    logs = {file.name for file in (tmp_path / "beta" / "runs_dir" / "x" / "log").iterdir()}
    assert "launcher-1.txt" in logs
    assert list((tmp_path / "beta" / "cache_dir").iterdir()), "beta has encoded for itself"
    assert alive(alpha, beta) == []


def test_the_commands_of_dry_run_train(hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path) -> None:
    """What --dry_run shows on machine 0 is typed by hand on both, in a folder with an odd name.

    on_machine_loss needs a line to join; by hand, the run trains as without it.
    """
    alpha, beta = hosts
    place = tmp_path / "it's a place"
    place.mkdir()
    config = two_machines(few, place, on_machine_loss="continue", backup_every="2 steps", debug_distributed=True)
    shown = terminal(alpha, train_command(config, place / "c.json", "--dry_run")).wait(0)
    commands = re.findall(r"^Machine (\d):\n  (.+)$", shown, re.MULTILINE)
    assert [number for number, _ in commands] == ["0", "1"]
    typed = [
        terminal(host, ["sh", "-c", command])
        for host, (_, command) in reversed(list(zip(hosts, commands, strict=True)))
    ]
    for each in typed:
        assert each.process.wait(GUARD_S) == 0, each.text()
    run = run_of(config)
    assert run.exit_code == 0
    assert len(run.losses) == 3
    assert run.events("started")[0]["host"] == "alpha", "machine 0 has rank 0"
    assert alive(alpha, beta) == []


def test_a_machine_loses_power_and_rejoins(hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path) -> None:
    """on_machine_loss=wait: the line is started again, and the run resumes from its newest backup."""
    alpha, beta = hosts
    fast = tmp_path / "fast"
    config = two_machines(
        few,
        tmp_path,
        on_machine_loss="wait",
        max_steps=50,
        backup_every="5 steps",
        family_options={"slow_step_s": 0.2, "slow_until": f"|{fast}"},
    )
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    line = first.join_line()
    terminal(beta, words(tmp_path, line))
    run = run_of(config)
    first.wait_for_step(run, 7)
    beta.power_off()
    fast.touch()
    first.wait_for(rf"beta \({beta.address}\) disconnected .* It can rejoin with the same line")
    again = terminal(beta, words(tmp_path, line))
    text = first.wait(0)
    assert again.wait(0)
    assert "Resuming at step" in text
    assert run.exit_code == 0
    steps = [event["step"] for event in run.events("step")]
    assert steps[-1] == 50
    assert len(steps) > 50, "some steps were done twice"
    assert alive(alpha, beta) == []


def test_the_others_go_on_without_a_lost_machine_and_take_it_in_again(
    hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path
) -> None:
    """on_machine_loss=continue: every step, also of those that were made twice, is that of a run alone."""
    alpha, beta = hosts
    steps = {"max_steps": 100_000, "epochs": 100_000}
    config = two_machines(
        few,
        tmp_path,
        **steps,
        on_machine_loss="continue",
        backup_every="5 steps",
        family_options={"slow_step_s": 0.1},
    )
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    line = first.join_line()
    terminal(beta, words(tmp_path, line))
    run = run_of(config)
    first.wait_for_step(run, 7)
    beta.power_off()
    lost = first.wait_for(r"Lost at \d\d:\d\d:\d\d: beta \(.*\) .* The run goes on from the newest backup on .*")[0]
    assert f"beta ({beta.address}) has ended its part of the run there" in lost
    assert "on 1 of 2 machines with 1 rank instead of 2" in lost
    assert lost in run.warnings
    first.wait_for_step(run, len(run.losses) + 3)
    again = terminal(beta, words(tmp_path, line))
    taken = first.wait_for(r"The run goes on from the newest backup on 2 of 2 machines with 2 ranks instead of 1 .*")[0]
    assert taken in run.warnings
    again.wait_for("All machines have joined: 1 . 1 processes")
    first.wait_for_step(run, len(run.losses) + 3)
    request_command(run.folder, "stop")
    first.wait(130)
    again.wait(0)
    assert run.exit_code == 130
    assert [len(event["devices"]) for event in run.events("started")] == [2, 1, 2]  # type: ignore[arg-type]
    before_s = re.findall(r"TANDEM_SECONDS_BEFORE=(\d+)", run.folder.launcher_log.read_text())
    assert int(before_s[-1]) > 0, "max_minutes is that of all three starts"
    made = [(int(event["step"]), event["loss"]) for event in run.events("step")]  # type: ignore[call-overload]
    last = made[-1][0]
    (tmp_path / "alone").mkdir()
    code, alone = train_alone(tiny_config(few, tmp_path / "alone", **{**steps, "max_steps": last}))
    assert code == 0
    assert {step for step, _ in made} == set(range(1, last + 1))
    for step, loss in made:
        assert loss == pytest.approx(alone.losses[step - 1], rel=1e-3), step
    assert alive(alpha, beta) == []


@pytest.mark.parametrize("fault", ["error", "power cut"])
def test_a_failure_on_the_other_machine_is_named_on_both(
    hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path, fault: str
) -> None:
    """The machines share no disk, so machine 0 must be informed. Of the same name, they are told apart by address."""
    alpha, beta = hosts if fault == "power cut" else (replace(host, name="twin") for host in hosts)
    options = {"faults": ["error:1:4"]} if fault == "error" else {"slow_step_s": 0.2}
    config = two_machines(few, tmp_path, max_steps=1000, family_options=options)
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    second = terminal(beta, words(tmp_path, first.join_line()))
    if fault == "power cut":
        first.wait_for_step(run_of(config), 3)
        beta.power_off()
        text = first.wait(3)
        assert "rank 1 on beta failed" in text
        assert f"beta ({beta.address}) has ended its part of the run there" in text
    else:
        text = first.wait(3)
        assert f"rank 1 on twin ({beta.address}) failed while training" in text
        assert "a mistake in the family's own code" in text
        started: dict[str, Any] = run_of(config).events("started")[0]
        shown = [started["host"], *started["devices"]]
        assert [str(each).partition("twin ")[2] for each in shown] == [
            *(f"({alpha.address})", f"({alpha.address})", f"({beta.address})")
        ]
        others = second.wait(3)
        assert f"rank 1 on twin ({beta.address}) failed" in others
        assert "a mistake in the family's own code" in others
    assert len(re.findall("Training stopped", text)) == 1
    assert alive(alpha, beta) == []


def test_machine_0_loses_power_while_the_processes_start(
    hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path
) -> None:
    """The other's launcher would wait for it for half an hour."""
    alpha, beta = hosts
    config = two_machines(few, tmp_path, max_steps=100_000)
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    second = terminal(beta, words(tmp_path, first.join_line()))
    second.wait_for("Starting; progress is shown on alpha")
    alpha.power_off()
    text = second.wait(3)
    assert "Training stopped: rank 0 on alpha failed" in text
    assert "no process had started here yet" in text
    assert "then run its new line here" in text
    assert alive(beta) == []


def test_ctrl_c_on_the_other_machine_while_its_processes_start(
    hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path
) -> None:
    """No rank is there yet to hear of it; the run went on, and the other machine waited for ever."""
    alpha, beta = hosts
    config = two_machines(few, tmp_path, max_steps=100_000)
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    second = terminal(beta, words(tmp_path, first.join_line()))
    second.wait_for("Starting; progress is shown on alpha")
    interrupt(beta)
    assert f"beta ({beta.address}) was stopped by Ctrl-C there" in first.wait(130)
    second.wait(130)
    assert alive(alpha, beta) == []


def test_the_absent_machine_is_named(hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path) -> None:
    alpha, beta = hosts
    config = two_machines(few, tmp_path, num_nodes=3, processes_per_node=[1], startup_timeout_s=20)
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    line = first.join_line()
    assert f"--join {alpha.address}:{config.initial_port + 1}" in line
    second = terminal(beta, words(tmp_path, line))
    text = first.wait(3)
    assert f"(joined: beta ({beta.address}); missing: machine 2)" in text
    assert "clients joined" not in text
    assert "missing: machine 2" in second.wait(3)
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    first.join_line()  # the name of a run that never began is free


def test_ctrl_c_while_waiting_is_told_to_all(
    hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path
) -> None:
    alpha, beta = hosts
    config = two_machines(few, tmp_path, num_nodes=3, processes_per_node=[1])
    first = terminal(alpha, train_command(config, tmp_path / "c.json"))
    line = first.join_line()
    second = terminal(beta, words(tmp_path, line))
    second.wait_for("Waiting for machine 2")
    interrupt(beta)
    assert "Stopped; machine 0 has been notified." in second.wait(130)
    first.wait_for(rf"beta \({beta.address}\) has left: it was stopped by Ctrl-C. Still missing: machines 1 and 2")
    second = terminal(beta, words(tmp_path, line))
    second.wait_for("Waiting for machine 2")
    interrupt(alpha)
    assert "Stopped while waiting for machines" in first.wait(130)
    assert "machine 0) has ended: it was stopped" in second.wait(3)
    assert alive(alpha, beta) == []


def test_numbered_machines_share_a_token_of_their_own(
    hosts: tuple[Host, Host], terminal: Open, few: Path, tmp_path: Path
) -> None:
    """The same command on every machine, with its own number; another config is refused by the setting's name.

    Ctrl-C on machine 1 ends the run that they resume, and machine 0 names it.
    """
    alpha, beta = hosts
    config = two_machines(few, tmp_path, master_addr=alpha.address)
    file = tmp_path / "token"
    file.write_text("a-secret-of-our-own-with-32-characters")
    token = ["--token_file", str(file)]
    command = train_command(config, tmp_path / "c.json", *token)
    numbered = [*command, "--set", "node_rank=1"]
    text = terminal(beta, [word for word in numbered if word not in token]).wait(2)
    assert "node_rank is 1, but the token is missing" in text
    second = terminal(beta, numbered)  # earlier than machine 0: it waits
    second.wait_for("Joining the run")
    first = terminal(alpha, command)
    wrong = terminal(beta, [*numbered, "--set", "seed=9"])
    text = wrong.wait(2)
    assert "the settings differ: seed is 9 on beta" in text
    for each in (first, second):
        each.wait(0)
    assert len(run_of(config).losses) == 3
    more = ["--resume", "latest", "--set", "max_steps=100000", "--set", "epochs=100000"]
    both = [terminal(alpha, [*command, *more]), terminal(beta, [*numbered, *more])]
    both[0].wait_for_step(run_of(config), 5)
    interrupt(beta)
    text = both[0].wait(130)
    assert "Resuming at step 3" in text
    assert f"Warning: beta ({beta.address}) was stopped by Ctrl-C there, so the whole run stops" in text
    assert "To continue, resume the run on machine 0 (--resume latest), then run its new line" in both[1].wait(130)
    assert [event["step"] for event in run_of(config).events("step")][:5] == [1, 2, 3, 4, 5]


def interrupt(host: Host) -> None:
    """Ctrl-C on the terminal of a host where nothing but train.py runs: torchrun has a session without a terminal."""
    found = []
    for pid in host.processes():
        name = subprocess.run(["ps", "-o", "args=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
        if "scripts/train.py" in name and name.split()[0].endswith("python"):
            found.append(pid)
    os.kill(min(found), signal.SIGINT)


def test_a_slow_cable_is_named_within_20_steps(terminal: Open, few: Path, tmp_path: Path) -> None:
    """1.8 MB of gradients over 20 Mbit/s: most of each step is spent waiting for them."""
    blocks = {"family": str(ROOT / "tests" / "block_family.py"), "family_options": {"width": 128}}
    config = two_machines(few, tmp_path, max_steps=20, **blocks)
    with two_hosts(rate="20mbit") as (alpha, beta):
        first = terminal(alpha, train_command(config, tmp_path / "c.json"))
        terminal(beta, words(tmp_path, first.join_line()))
        first.wait(0)
    assert "Training is limited by communication: " in run_of(config).warnings
