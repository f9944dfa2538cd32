"""The follower with complete, partial, huge and invalid event files, and with folders that vanish."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from app.monitor.run_list import RunList
from app.runs.control import Follower, RunControl
from app.runs.join_prompt import JoinPrompt, join_prompt_of
from app.runs.liveness import Liveness, read_liveness
from app.runs.status import STOPPING, Status, status_of
from modules.config import DataError
from modules.run import RunFolder
from modules.run.folder.failures import record_start_failure
from modules.run.folder.pidfile import Launcher, write_pidfile
from modules.run.join.join_line import read_join_line, write_join_line
from modules.run.remote.run_copy import Copy
from modules.run.view.event_records import Message
from modules.run.view.run_view import RunView
from modules.run.view.terminal import render
from tests.app.fake_runs import line, make_fake_run, step_event

Follow = Callable[[Path], Follower]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Start followers and stop them after the test."""
    started: list[Follower] = []

    def begin(path: Path) -> Follower:
        started.append(Follower(path))
        started[-1].start()
        return started[-1]

    yield begin
    for follower in started:
        follower.stop()


def until(condition: Callable[[], object], what: str, within_s: float = 200) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {within_s} s"
        time.sleep(0.01)


def caught_up(follower: Follower) -> Follower:
    assert follower.is_caught_up.wait(120)
    return follower


def test_all_events_of_a_run_are_read(tmp_path: Path, follow: Follow) -> None:
    folder = make_fake_run(tmp_path / "r", steps=120, ranks=3, samples_every=60, total=240, ended=None)
    view = caught_up(follow(folder.path)).view
    assert view.step is not None
    assert (view.step.step, view.step.epoch) == (120, 1)
    assert view.run_info is not None
    assert (view.run_info.total_steps, view.run_info.devices[0]) == (240, "NVIDIA GeForce RTX 4090")
    assert {name: series.count for name, series in view.metrics.items()} == dict.fromkeys(view.metrics, 120)
    assert view.eval_losses["validation"].count == 12
    assert len(view.ranks) == 3
    assert view.ranks[1]["temperature_c"] == 66
    assert view.rank_summaries[1]["temperature_c"].mean == 66
    assert [sample.step for sample in view.samples] == [60] * 5 + [120] * 5
    assert view.backup_step == 120
    assert view.phase is not None
    assert view.phase.name == "training"


def test_partial_line_is_read_once_complete(tmp_path: Path, follow: Follow) -> None:
    folder = make_fake_run(tmp_path / "r", steps=10, ended=None)
    view = caught_up(follow(folder.path)).view
    whole = line(step_event(11, time.time(), random.Random(1)))
    with folder.events_file.open("a") as file:
        file.write(whole[:40])
        file.flush()
        time.sleep(0.5)
        assert view.step is not None
        assert view.step.step == 10
        file.write(whole[40:])
        file.flush()
        until(lambda: view.step is not None and view.step.step == 11, "the whole line")


@pytest.mark.slow
def test_many_events_are_all_counted(tmp_path: Path, follow: Follow) -> None:
    folder = make_fake_run(tmp_path / "r", steps=20, ended=None)
    chance = random.Random(2)
    with folder.events_file.open("a") as file:
        file.writelines(line(step_event(step, 1e9 + step, chance, 60_000)) for step in range(21, 60_001))
    follower = caught_up(follow(folder.path))
    view = follower.view
    assert view.metrics["loss"].count == 60_000
    assert view.step is not None
    assert view.step.step == 60_000


INVALID_LINES = """

{
null
[]
7
"step"
{}
{"type":7}
{"type":"from the future","a":[1,2]}
{"type":"step","step":"three"}
{"type":"step","step":-4,"loss":1}
{"type":"step","step":1e400}
{"type":"step","step":NaN}
{"type":"step"}
{"type":"step","step":true}
{"type":"phase","phase":["x"],"done":"many","total":{}}
{"type":"started","config":3,"devices":"none","t":"noon"}
{"type":"ranks","ranks":7}
{"type":"ranks","ranks":[1,null,{"step_s":"long","host":5,"nested":{"a":1}}]}
{"type":"sample","file":3,"step":2}
{"type":"sample"}
{"type":"backup","step":"x"}
{"type":"validation","loss":[]}
{"type":"warning","message":{"a":1}}
{"type":"error","rank":"first","message":null,"advice":5}
{"type":"step","step":21,"loss":"low","lr":null,"grad_norm":[],"samples_per_s":{},"eta_s":"soon"}
""".splitlines()
LONG_INVALID_LINES = ["[" * 200_000, '{"type":"step","step":' + "9" * 5000 + "}", "\x00\x01\x02" * 1000]


def test_invalid_lines_are_skipped(tmp_path: Path, follow: Follow) -> None:
    folder = make_fake_run(tmp_path / "r", steps=20, ended=None)
    with folder.events_file.open("ab") as file:
        for text in (*INVALID_LINES, *LONG_INVALID_LINES):
            file.write(text.encode() + b"\n")
        file.write(b"\xff\xfe" * 500 + b"\n")
        file.write(b"x" * (20 << 20) + b"\n")  # a line of 20 MiB
        file.write(line(step_event(22, time.time(), random.Random(1))).encode())
    view = caught_up(follow(folder.path)).view
    assert view.step is not None
    assert view.step.step == 22
    assert view.metrics["loss"].count == 21
    assert status_of(view, Liveness(), time.time()).kind in {"killed", "failed"}


def test_metrics_of_validations_are_kept_by_name() -> None:
    view = RunView()
    measured = {"type": "validation", "loss": 0.5, "t": 5.0}
    view.apply(
        [
            {**measured, "set": "validation", "step": 10, "metrics": {"accuracy": 0.5, "top5_accuracy": 0.75}},
            {**measured, "set": "validation", "step": 20, "metrics": {"accuracy": 0.625, "top5_accuracy": "high"}},
            {**measured, "set": "test", "step": 20, "metrics": {"accuracy": 0.25}},
            {**measured, "set": "test", "step": 20, "metrics": {f"other {number}": 1.0 for number in range(50)}},
        ]
    )
    assert list(view.eval_metrics)[:3] == ["accuracy", "top5 accuracy", "test accuracy"]
    assert len(view.eval_metrics) == 8
    assert list(view.eval_metrics["accuracy"].curve().means) == [0.5, 0.625]
    assert view.eval_metrics["top5 accuracy"].count == 1
    view.apply([{"type": "step", "step": 15, "t": 6.0, "loss": 1.0}])  # resumed from the backup of step 14
    assert list(view.eval_metrics["accuracy"].curve().means) == [0.5]


def test_metrics_of_ranks_are_kept_by_name_up_to_a_number() -> None:
    view = RunView()
    for number in range(9):
        row = {f"{number}-{each}" + 5000 * "x": 1.0 for each in range(40)}
        view.apply([{"type": "ranks", "step": number, "ranks": [row]}])
    assert len(view.rank_summaries[0]) == 40
    assert {len(name) for name in view.rank_summaries[0]} == {100}


def test_a_backup_in_the_background_is_shown_until_it_is_complete() -> None:
    view, training = RunView(), {"type": "phase", "phase": "training", "t": 5.0}
    titles, shown = [], []
    for event in (training, {"type": "backing_up", "step": 40}, training, {"type": "backing_up", "step": None}):
        view.apply([{"t": 5.0, **event}])
        titles.append(status_of(view, Liveness(is_training=True), 6.0).title)
        with (console := Console(file=StringIO(), width=100)).capture() as printed:
            console.print(render(view, "cats"))
        shown.append("backing up step 40" in printed.get())
    assert titles == ["Training", "Training, backing up step 40", "Training, backing up step 40", "Training"]
    assert shown == [False, True, True, False], "in scripts/monitor.py, too"
    killed_and_resumed = ({"type": "backing_up", "step": 40}, {"type": "phase", "phase": "loading"}, training)
    view.apply([{"t": 5.0, **event} for event in killed_and_resumed])
    assert status_of(view, Liveness(is_training=True), 6.0).title == "Training"


def test_a_start_with_nothing_left_to_train_keeps_the_figures_and_counts_no_pause() -> None:
    view = RunView()
    loading: dict[str, object] = {"type": "phase", "phase": "loading"}
    ended: dict[str, object] = {"type": "finished", "reason": "finished", "exit_code": 0}
    first = [loading, {"type": "started", "total_steps": 9}, {"type": "step", "step": 9, "loss": 0.25}]
    first += [{"type": "backup", "step": 9}, ended]
    view.apply([{**event, "t": 100.0 + number} for number, event in enumerate(first)])
    assert (view.duration_s, view.position, view.last_loss) == (4.0, 9, 0.25)
    view.apply([{**event, "t": 5000.0 + number} for number, event in enumerate([loading, ended])])
    assert (view.duration_s, view.position, view.last_loss) == (5.0, 9, 0.25)


def test_a_slow_start_tells_its_time() -> None:
    starts = Liveness(launcher=Launcher(psutil.Process(), marked_at=100.0))
    assert status_of(RunView(), starts, 110.0).detail.endswith("takes a few seconds.")
    assert "for 45 s so far" in status_of(RunView(), starts, 145.0).detail
    view = RunView()
    view.apply([{"type": "joining", "t": 120.0, "message": "All machines have joined.", "missing": []}])
    assert "for 25 s so far" in status_of(view, starts, 145.0).detail, "not since they were waited for"


def test_invalid_event_values_leave_the_view_usable() -> None:
    values: list[object] = [None, True, -1, 1e308, "x" * 10_000, [], {}, [[]], float("nan"), 10**400]
    names = {
        "started": ("config", "devices", "backend", "total_steps", "steps_per_epoch", "learning_rate", "host"),
        "phase": ("phase", "done", "total"),
        "step": ("step", "epoch", "loss", "lr", "samples_per_s", "grad_norm", "eta_s"),
        "ranks": ("ranks",),
        "sample": ("file", "prompt", "step"),
        "backing_up": ("step",),
        "backup": ("path", "step"),
        "validation": ("set", "loss", "step", "metrics"),
        "warning": ("message",),
        "error": ("rank", "host", "kind", "message", "advice"),
        "finished": ("reason", "exit_code"),
    }
    for kind, fields in names.items():
        for field in ("t", *fields):
            for value in values:
                view = RunView()
                view.apply([{"type": kind, field: value}, {"type": "step", "step": 1, "loss": 0.5, "t": 5.0}])
                assert status_of(view, Liveness(), 10.0).title
                assert status_of(view, Liveness(is_training=True), 10.0).title
                assert view.step is not None


def test_folder_deleted_and_recreated_as_another_run(tmp_path: Path, follow: Follow) -> None:
    folder = make_fake_run(tmp_path / "r", steps=50, ended=None)
    follower = caught_up(follow(folder.path))
    view = follower.view
    shutil.rmtree(folder.path)
    until(lambda: not follower.liveness.exists, "notice")
    assert status_of(view, follower.liveness, time.time()).kind == "missing"
    assert view.metrics["loss"].count == 50, "what was read is kept"
    make_fake_run(folder.path, steps=70, ended="finished", seed=9)  # longer than the former one
    until(lambda: view.step is not None and view.step.step == 70, "the other run")
    until(lambda: follower.liveness.exists, "life")
    assert view.metrics["loss"].count == 70
    assert status_of(view, follower.liveness, time.time()).kind == "finished"


def test_resumed_run_repeats_its_steps(tmp_path: Path, follow: Follow) -> None:
    folder = make_fake_run(tmp_path / "r", steps=100, total=200, ended=None)
    follower = caught_up(follow(folder.path))
    with folder.events_file.open("a") as file:
        file.write(line({"t": time.time(), "type": "error", "message": "gone", "rank": 0}))
        file.write(line({"t": time.time(), "type": "finished", "reason": "failed", "exit_code": 3}))
    until(lambda: follower.view.finished is not None, "the end")
    assert status_of(follower.view, follower.liveness, time.time()).kind == "failed"
    with folder.events_file.open("a") as file:
        for event in ({"type": "phase", "phase": "loading"}, {"type": "phase", "phase": "training"}):
            file.write(line({"t": time.time(), **event}))
        for step in range(61, 81):
            file.write(line(step_event(step, time.time(), random.Random(step))))
    until(lambda: follower.view.step is not None and follower.view.step.step == 80, "step 80")
    assert follower.view.metrics["loss"].count == 80
    assert list(follower.view.metrics["loss"].curve().steps) == list(range(1, 81))
    assert follower.view.finished is None
    assert status_of(follower.view, Liveness(is_training=True), time.time()).kind == "training"


def test_download_progress_is_in_gigabytes() -> None:
    view = RunView()
    fields = {"phase": "downloading", "done": 1_200_000_000, "total": 6_940_000_000, "unit": "bytes"}
    view.apply([{"t": time.time(), "type": "phase", **fields}])
    status = status_of(view, Liveness(is_training=True), time.time())
    assert status.title == "Downloading the base model 1.2 of 6.9 GB"


@pytest.mark.parametrize(
    ("events", "liveness", "kind"),
    [
        ([], Liveness(is_training=True), "starting"),
        ([{"type": "phase", "phase": "caching", "done": 3, "total": 9}], Liveness(is_training=True), "caching"),
        ([{"type": "phase", "phase": "new phase"}], Liveness(is_training=True), "new phase"),
        ([{"type": "phase", "phase": "training", "t": 1.0}], Liveness(is_training=True), "quiet"),
        ([{"type": "phase", "phase": "training"}], Liveness(is_training=True, stop_wanted=True), "stopping"),
        ([{"type": "finished", "reason": "stopped"}], Liveness(is_training=True), "ending"),
        ([{"type": "finished", "reason": "finished"}], Liveness(is_training=True), "finishing"),
        ([{"type": "finished", "reason": "stopped"}], Liveness(), "stopped"),
        ([{"type": "finished", "reason": "early_stopping"}], Liveness(), "early_stopping"),
        ([{"type": "finished", "reason": "failed"}], Liveness(), "failed"),
        ([{"type": "finished", "reason": "unheard of"}], Liveness(), "unheard of"),
        ([], Liveness(start_failure=Message(time.time() + 1, "error", "world_size is 9")), "failed"),
        ([], Liveness(console="Traceback (most recent call last):\nImportError: torch\n"), "failed"),
        ([], Liveness(), "killed"),
        ([], Liveness(exists=False), "missing"),
    ],
)
def test_status_of_each_state(events: list[dict[str, object]], liveness: Liveness, kind: str) -> None:
    view = RunView()
    view.apply([{"t": time.time(), **event} for event in events])
    status = status_of(view, liveness, time.time())
    assert status.kind == kind
    assert status.title
    assert status.is_alive == liveness.is_alive
    if kind == "failed":
        assert status.problem is not None
        assert status.problem.text


@pytest.mark.parametrize(
    ("copy", "is_alive", "title"),
    [
        (
            Copy(machine="beta", stage="sending", attended=True, said="Sending 3 files.", done=0.5),
            True,
            "Sending data to beta",
        ),
        (Copy(machine="beta", attended=True), True, "Training on beta"),
        (Copy(machine="beta"), True, "Training on beta"),
        (Copy(machine="beta", attended=True, said="The connection was lost."), True, "No connection to beta"),
        (Copy(machine="beta", stage="pulling", attended=True), True, "Getting results from beta"),
        (Copy(machine="beta", stage="complete", attended=True), True, "Training"),
        (Copy(machine="beta", stage="sending", attended=True, done=0.5), False, "Not sent to beta yet"),
        (Copy(machine="beta", stage="sending", id="a", said="Starting there."), True, "Training on beta"),
        (Copy(machine="beta", stage="sending", id="a", said="Starting there."), False, "May have started on beta"),
        (Copy(machine="beta"), False, "Not followed on beta"),
        (Copy(machine="beta", stage="pulling"), False, "Results are still on beta"),
        (Copy(machine="beta", attended=True), False, "Not followed on beta"),
        (Copy(machine="beta", stage="pulling", attended=True), False, "Results are still on beta"),
        (Copy(machine="beta", stage="complete", attended=True), False, "Terminated unexpectedly"),
    ],
)
def test_a_run_on_another_machine_says_where(copy: Copy, is_alive: bool, title: str) -> None:
    view, now = RunView(), time.time()
    view.apply([{"t": now, "type": "phase", "phase": "training"}, {"t": now, "type": "step", "step": 40}])
    status = status_of(view, Liveness(is_training=is_alive, copy=copy), now)
    assert status.title == title
    assert status.is_alive == is_alive
    assert status.can_resume != is_alive, "whatever was left can be gone on with"
    not_run = status_of(view, Liveness(copy=Copy(machine="beta", stage="complete", fault="It was not run.")), now)
    assert not_run.problem is not None, "the command after the run"
    assert not_run.problem.text == "It was not run."
    refused = Liveness(copy=Copy(machine="beta", attended=True, fault="beta does not accept your key."))
    problem = status_of(view, refused, now).problem
    assert problem is not None
    assert problem.text == "beta does not accept your key."


def test_stopped_run_says_what_becomes_of_its_backup() -> None:
    view, now = RunView(), time.time()
    view.apply([{"t": now, "type": "step", "step": 40}, {"t": now, "type": "backing_up", "step": 40}])
    detail = status_of(view, Liveness(is_training=True, stop_wanted=True), now).detail
    assert "Writing the backup of step 40." in detail
    view.apply([{"t": now, "type": "backing_up", "step": None}, {"t": now, "type": "backup", "step": 40}])
    view.apply([{"t": now, "type": "finished", "reason": "stopped"}])
    status = status_of(view, Liveness(is_training=True), now)
    assert status.detail == "The newest backup is that of step 40."
    assert status.kind in STOPPING, "Stop can only be forced"


def test_a_run_that_failed_says_from_which_step_resume_goes_on() -> None:
    view, start_failure = RunView(), Message(9.0, "error", "world_size is 9")
    view.apply([{"t": 1.0, "type": "error", "message": "out of memory"}])
    assert status_of(view, Liveness(), 2.0).detail == "There is no backup yet: Resume starts at the first step."
    assert status_of(view, Liveness(start_failure=start_failure), 9.0).detail == "", "it never started"
    goes_on = "Resume continues from the backup of step 1,200."
    view.apply([{"t": 3.0, "type": "backup", "step": 1200}])
    assert status_of(view, Liveness(), 4.0).detail == goes_on
    view.apply([{"t": 5.0, "type": "finished", "reason": "failed"}])
    assert status_of(view, Liveness(), 6.0).detail == goes_on
    assert status_of(view, Liveness(start_failure=start_failure), 9.0).detail == goes_on


def test_startup_error_has_its_advice(tmp_path: Path, follow: Follow) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.log_dir.mkdir(parents=True)
    folder.console_file.write_bytes(b"Das Training begann nicht: \xff\n")  # what is printed does not matter
    record_start_failure(folder, DataError("no images in 'x'", "Name a folder"))
    follower = follow(folder.path)
    until(lambda: follower.liveness.start_failure, "the failure")
    status = status_of(follower.view, follower.liveness, time.time())
    assert status.title == "Did not start"
    assert status.problem is not None
    assert (status.problem.text, status.problem.advice) == ("no images in 'x'", "Name a folder")


def test_failed_resume_is_newer_than_the_last_end() -> None:
    view = RunView()
    view.apply([{"t": 100.0, "type": "finished", "reason": "stopped"}])
    failure = Message(101.0, "error", "world_size is 9")
    assert status_of(view, Liveness(start_failure=failure), 102.0).problem == failure
    view.apply([{"t": 103.0, "type": "finished", "reason": "stopped"}])
    assert status_of(view, Liveness(start_failure=failure), 104.0).kind == "stopped"


def test_a_run_that_never_said_how_it_ended_has_not_finished(tmp_path: Path) -> None:
    """Exit code 0 is no success without an event; what an earlier start has written tells nothing of a later one."""

    def status_after(folder: RunFolder, kind: str, process: subprocess.Popen[bytes] | None = None) -> Status:
        control = RunControl(folder.path, process)
        until(lambda: control.status().kind == kind, f"{kind}, but {control.status()}")
        control.detach()
        return control.status()

    cut = make_fake_run(tmp_path / "cut", steps=5, ended=None)
    cut.console_file.write_text("Finished after step 5.\n")
    for _ in range(2):
        status = status_after(cut, "unknown", subprocess.Popen(["true"]))
        assert (status.title, status.has_result, status.can_resume) == ("Ended without saying how", False, True)
        assert status.problem is not None
        assert "log/console.txt" in status.problem.advice
        cut.events_file.write_text("")  # and now all events are lost
    finished = make_fake_run(tmp_path / "finished", steps=5, started_at=time.time() - 100)
    with subprocess.Popen(["sleep", "100"]) as launcher:
        write_pidfile(finished, launcher.pid)
        launcher.kill()
    assert "killed" in str(status_after(finished, "killed").problem)
    finished.console_file.write_text("ImportError: torch\n")
    status = status_after(finished, "failed")
    assert (status.title, status.can_resume) == ("Did not start", True)


def test_a_run_without_events_names_what_it_has_left(tmp_path: Path) -> None:
    """A full disk may have cut them, or somebody has removed them: it was not killed, nor has it never started."""
    folder = make_fake_run(tmp_path / "cut", steps=5, ended=None)
    folder.events_file.write_text("")
    folder.console_file.write_text("Training step 20 of 50\n")
    assert status_of(RunView(), read_liveness(folder), 100.0).title == "Did not start"
    folder.model_dir.mkdir(exist_ok=True)
    status = status_of(RunView(), read_liveness(folder), 100.0)
    assert (status.kind, status.has_result, status.can_resume) == ("unknown", False, True)
    assert status.detail == "Its model is in the run folder."
    for name in ("step-000010", "step-000020"):
        (folder.backup_dir / name).mkdir(parents=True)
    for _ in range(2):
        (row,) = RunList().scan(folder.path.parent)
        assert row.status.title == "Ended without saying how"
        assert row.status.detail == "Resume continues from the backup of step 20."
        assert "none of its events" in str(row.status.problem)
        folder.events_file.unlink(missing_ok=True)


def test_warnings_of_a_resumed_run_count_once() -> None:
    view = RunView()
    for start in (100.0, 200.0):
        view.apply([{"t": start + number, "type": "warning", "message": text} for number, text in enumerate("ab")])
    assert [(each.time, each.text) for each in view.warnings] == [(200.0, "a"), (201.0, "b")]


def test_a_run_that_stops_with_another_machine_names_it() -> None:
    view = RunView()
    why = "beta (10.0.0.2) was stopped by Ctrl-C there."
    view.apply([{"t": 100.0, "type": "warning", "message": why, "is_cause_of_end": True}])
    view.apply([{"t": 101.0, "type": "finished", "reason": "interrupted"}])
    status = status_of(view, Liveness(), 102.0)
    assert (status.title, status.detail.startswith(why)) == ("Interrupted", True)
    view.apply([{"t": 103.0, "type": "phase", "phase": "loading"}])
    view.apply([{"t": 104.0, "type": "finished", "reason": "interrupted"}])
    assert why not in status_of(view, Liveness(), 105.0).detail, "it was an earlier start"


def test_join_prompt_comes_from_this_starts_events(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.make_directories()
    folder.console_file.write_text("Diese Maschine ist Nummer 0. Warten ... --join verstümmelt\n")
    write_join_line(folder, " TANDEM_JOIN_TOKEN=secret python scripts/train.py --join 10.0.0.1:12356")
    assert folder.join_line_file.stat().st_mode & 0o077 == 0, "the token is readable only by its owner"
    view = RunView()
    view.apply(
        [
            {"t": 90.0, "type": "joining", "message": "of an earlier start", "missing": [1]},
            {"t": 91.0, "type": "finished", "reason": "interrupted"},
        ]
    )
    liveness = Liveness(launcher=Launcher(psutil.Process(), 100.0), join_line=read_join_line(folder))
    assert status_of(view, liveness, 100.0).kind == "starting"
    view.apply([{"t": 101.0, "type": "joining", "message": "beta fehlt noch", "missing": [1]}])
    status = status_of(view, liveness, 102.0)
    assert (status.kind, status.detail) == ("waiting", "beta fehlt noch")
    prompt = join_prompt_of(view, liveness.join_line, liveness.started)
    assert prompt == JoinPrompt(read_join_line(folder), ("beta fehlt noch",))
    assert prompt.line.startswith(" TANDEM_JOIN_TOKEN=secret"), "with the space that keeps it out of the history"
    view.apply([{"t": 103.0, "type": "joining", "message": "All 2 machines have joined.", "missing": []}])
    assert status_of(view, liveness, 104.0).kind == "starting"
    assert join_prompt_of(view, liveness.join_line, liveness.started) is None


def test_lines_of_fake_runs_are_events(tmp_path: Path) -> None:
    folder = make_fake_run(tmp_path / "r", steps=5)
    assert all(json.loads(text)["v"] == 1 for text in folder.events_file.read_text().splitlines())


@pytest.mark.parametrize(
    ("reason", "tone", "fraction"),
    [("finished", "good", 1.0), ("early_stopping", "good", 1.0), ("cached", "good", 1.0), ("paused", "warn", 0.0)],
)
def test_only_a_complete_run_ends_well(reason: str, tone: str, fraction: float) -> None:
    view = RunView()
    view.apply([{"t": 1.0, "type": "finished", "reason": reason}])
    status = status_of(view, Liveness(), 2.0)
    assert (status.tone, status.fraction) == (tone, fraction)


def test_the_origin_of_an_error_is_not_said_twice() -> None:
    assert Message(1.0, "error", "It broke.", rank=1, host="attic").origin == "rank 1 on attic"
    assert Message(1.0, "error", "Rank 10 waits.", rank=1).origin == "rank 1"
    assert Message(1.0, "error", "Out of memory on rank 1 (attic).", rank=1, host="attic").origin == ""
    assert Message(1.0, "error", "attic (10.0.0.2) has left.", rank=2, host="attic").origin == ""
    assert Message(1.0, "error", "It broke.").origin == ""
    assert Message(1.0, "error", "It was killed.", rank=1, host="attic", failure="launcher").origin == "on attic"


def test_to_resume_is_advised_once() -> None:
    view = RunView()
    advice = "Memory may have run out. Continue with --resume latest."
    view.apply([{"t": 1.0, "type": "error", "rank": 0, "message": "It broke.", "advice": advice}])
    status = status_of(view, Liveness(backup=8), 2.0)
    assert (status.advice, status.detail) == (
        "Memory may have run out.",
        "Resume continues from the backup of step 8.",
    )


def test_a_run_that_waits_in_the_queue_of_a_cluster_says_so() -> None:
    copy = Copy(machine="cluster", attended=True, job="Job 4711 waits in the queue: 3rd, Priority.")
    seen = Liveness(is_training=True, copy=copy)
    status = status_of(RunView(), seen, 6.0)
    assert (status.title, status.detail) == ("In the queue of cluster", copy.job)
    assert status_of(RunView(), seen, 6.0, stop_wanted=True).detail == f"It is taken out of the queue. {copy.job}"
    lost = Liveness(is_training=True, copy=copy.model_copy(update={"said": "The connection was lost."}))
    assert status_of(RunView(), lost, 6.0).kind == "away"


def test_a_stop_that_waits_for_a_connection_is_said() -> None:
    copy = Copy(machine="beta", attended=True, said="The connection was lost.")
    seen = Liveness(is_training=True, copy=copy)
    assert status_of(RunView(), seen, 6.0).detail == "The connection was lost."
    waits = status_of(RunView(), seen, 6.0, stop_wanted=True)
    assert waits.kind == "away"
    assert (
        waits.detail
        == "Stop is asked there as soon as there is one; press it again to force it. The connection was lost."
    )
