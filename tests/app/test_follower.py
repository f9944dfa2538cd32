"""What the follower makes of event files: whole ones, torn ones, floods, nonsense, and folders that go away."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.follower import Follower
from app.run_status import Life, status_of
from app.run_view import RunView
from modules.run import RunFolder
from tests.app.made_runs import line, made_run, step_event

Follow = Callable[[Path], Follower]


@pytest.fixture
def follow() -> Iterator[Follow]:
    """Start followers, and end them after the test."""
    started: list[Follower] = []

    def begin(path: Path) -> Follower:
        started.append(Follower(path))
        started[-1].start()
        return started[-1]

    yield begin
    for follower in started:
        follower.stop()


def until(condition: Callable[[], object], what: str, within_s: float = 60) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"no {what} in {within_s} s"
        time.sleep(0.01)


def caught_up(follower: Follower) -> Follower:
    assert follower.is_caught_up.wait(120)
    return follower


def test_everything_that_a_run_tells(tmp_path: Path, follow: Follow) -> None:
    folder = made_run(tmp_path / "r", steps=120, ranks=3, samples_every=60, total=240, ended=None)
    view = caught_up(follow(folder.path)).view
    assert view.step is not None
    assert (view.step.step, view.step.epoch) == (120, 1)
    assert view.facts is not None
    assert (view.facts.total_steps, view.facts.devices[0]) == (240, "NVIDIA GeForce RTX 4090")
    assert {name: series.count for name, series in view.figures.items()} == dict.fromkeys(view.figures, 120)
    assert view.measured["validation"].count == 12
    assert len(view.ranks) == 3
    assert view.ranks[1]["temperature_c"] == 66
    assert view.spreads[1]["temperature_c"].mean == 66
    assert [sample.step for sample in view.samples] == [60] * 5 + [120] * 5
    assert view.backup_step == 120
    assert view.phase is not None
    assert view.phase.name == "training"


def test_a_torn_line_is_read_when_it_is_whole(tmp_path: Path, follow: Follow) -> None:
    folder = made_run(tmp_path / "r", steps=10, ended=None)
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


def test_a_flood_of_events_costs_little_memory_and_none_is_lost(tmp_path: Path, follow: Follow) -> None:
    folder = made_run(tmp_path / "r", steps=20, ended=None)
    chance = random.Random(2)
    with folder.events_file.open("a") as file:
        file.writelines(line(step_event(step, 1e9 + step, chance, 60_000)) for step in range(21, 60_001))
    follower = caught_up(follow(folder.path))
    view = follower.view
    assert view.figures["loss"].count == 60_000
    assert view.step is not None
    assert view.step.step == 60_000


NONSENSE = """

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
LONG_NONSENSE = ["[" * 200_000, '{"type":"step","step":' + "9" * 5000 + "}", "\x00\x01\x02" * 1000]


def test_nonsense_is_passed_over(tmp_path: Path, follow: Follow) -> None:
    folder = made_run(tmp_path / "r", steps=20, ended=None)
    with folder.events_file.open("ab") as file:
        for text in (*NONSENSE, *LONG_NONSENSE):
            file.write(text.encode() + b"\n")
        file.write(b"\xff\xfe" * 500 + b"\n")
        file.write(b"x" * (20 << 20) + b"\n")  # a line of 20 MiB
        file.write(line(step_event(22, time.time(), random.Random(1))).encode())
    view = caught_up(follow(folder.path)).view
    assert view.step is not None
    assert view.step.step == 22
    assert view.figures["loss"].count == 21
    assert status_of(view, Life(), time.time()).kind in {"killed", "failed"}


def test_every_single_wrong_value_leaves_the_view_usable() -> None:
    values = [None, True, -1, 1e308, "x" * 10_000, [], {}, [[]], float("nan"), 10**400]
    names = {
        "started": ("config", "devices", "backend", "total_steps", "steps_per_epoch", "learning_rate", "host"),
        "phase": ("phase", "done", "total"),
        "step": ("step", "epoch", "loss", "lr", "samples_per_s", "grad_norm", "eta_s"),
        "ranks": ("ranks",),
        "sample": ("file", "prompt", "step"),
        "backup": ("path", "step"),
        "validation": ("set", "loss", "step"),
        "warning": ("message",),
        "error": ("rank", "host", "kind", "message", "advice"),
        "finished": ("reason", "exit_code"),
    }
    for kind, fields in names.items():
        for field in ("t", *fields):
            for value in values:
                view = RunView()
                view.apply([{"type": kind, field: value}, {"type": "step", "step": 1, "loss": 0.5, "t": 5.0}])
                assert status_of(view, Life(), 10.0).words
                assert status_of(view, Life(is_training=True), 10.0).words
                assert view.step is not None


def test_a_folder_that_is_deleted_and_comes_back_as_another_run(tmp_path: Path, follow: Follow) -> None:
    folder = made_run(tmp_path / "r", steps=50, ended=None)
    follower = caught_up(follow(folder.path))
    view = follower.view
    shutil.rmtree(folder.path)
    until(lambda: not follower.life.exists, "notice")
    assert status_of(view, follower.life, time.time()).kind == "missing"
    assert view.figures["loss"].count == 50, "what was seen stays in sight"
    made_run(folder.path, steps=70, ended="finished", seed=9)  # longer than the former one
    until(lambda: view.step is not None and view.step.step == 70, "the other run")
    until(lambda: follower.life.exists, "life")
    assert view.figures["loss"].count == 70
    assert status_of(view, follower.life, time.time()).kind == "finished"


def test_a_resumed_run_does_its_steps_again(tmp_path: Path, follow: Follow) -> None:
    folder = made_run(tmp_path / "r", steps=100, total=200, ended=None)
    follower = caught_up(follow(folder.path))
    with folder.events_file.open("a") as file:
        file.write(line({"t": time.time(), "type": "error", "message": "gone", "rank": 0}))
        file.write(line({"t": time.time(), "type": "finished", "reason": "failed", "exit_code": 3}))
    until(lambda: follower.view.finished is not None, "the end")
    assert status_of(follower.view, follower.life, time.time()).kind == "failed"
    with folder.events_file.open("a") as file:
        for event in ({"type": "phase", "phase": "loading"}, {"type": "phase", "phase": "training"}):
            file.write(line({"t": time.time(), **event}))
        for step in range(61, 81):
            file.write(line(step_event(step, time.time(), random.Random(step))))
    until(lambda: follower.view.step is not None and follower.view.step.step == 80, "step 80")
    assert follower.view.figures["loss"].count == 80
    assert list(follower.view.figures["loss"].curve().steps) == list(range(1, 81))
    assert follower.view.finished is None
    assert status_of(follower.view, Life(is_training=True), time.time()).kind == "training"


def test_a_download_is_told_in_gigabytes() -> None:
    view = RunView()
    told = {"phase": "downloading", "done": 1_200_000_000, "total": 6_940_000_000, "unit": "bytes"}
    view.apply([{"t": time.time(), "type": "phase", **told}])
    status = status_of(view, Life(is_training=True), time.time())
    assert status.words == "Downloading the base model 1.2 of 6.9 GB"


@pytest.mark.parametrize(
    ("events", "life", "kind"),
    [
        ([], Life(is_training=True), "starting"),
        ([{"type": "phase", "phase": "caching", "done": 3, "total": 9}], Life(is_training=True), "caching"),
        ([{"type": "phase", "phase": "new phase"}], Life(is_training=True), "new phase"),
        ([{"type": "phase", "phase": "training", "t": 1.0}], Life(is_training=True), "quiet"),
        ([{"type": "phase", "phase": "training"}], Life(is_training=True, stop_wanted=True), "stopping"),
        ([{"type": "finished", "reason": "stopped"}], Life(is_training=True), "ending"),
        ([{"type": "finished", "reason": "stopped"}], Life(), "stopped"),
        ([{"type": "finished", "reason": "early_stopping"}], Life(), "early_stopping"),
        ([{"type": "finished", "reason": "failed"}], Life(), "failed"),
        ([{"type": "finished", "reason": "unheard of"}], Life(), "unheard of"),
        ([], Life(console="Run folder: x\nTraining did not start: world_size is 9.\nUse at most 2.\n"), "failed"),
        ([], Life(), "killed"),
        ([], Life(exists=False), "missing"),
    ],
)
def test_the_state_in_words(events: list[dict[str, object]], life: Life, kind: str) -> None:
    view = RunView()
    view.apply([{"t": time.time(), **event} for event in events])
    status = status_of(view, life, time.time())
    assert status.kind == kind
    assert status.words
    assert status.is_alive == life.is_alive
    if kind == "failed":
        assert status.problem is not None
        assert status.problem.text


def test_a_refusal_is_told_with_its_advice(tmp_path: Path, follow: Follow) -> None:
    folder = RunFolder(tmp_path / "r")
    folder.log_dir.mkdir(parents=True)
    (folder.log_dir / "console.txt").write_text("Training did not start: no pictures in 'x'.\n  Name a folder.\n")
    follower = follow(folder.path)
    until(lambda: follower.life.console, "the console's end")
    problem = status_of(follower.view, follower.life, time.time()).problem
    assert problem is not None
    assert (problem.text, problem.advice) == ("no pictures in 'x'.", "Name a folder.")


def test_lines_of_the_made_runs_are_events(tmp_path: Path) -> None:
    folder = made_run(tmp_path / "r", steps=5)
    assert all(json.loads(text)["v"] == 1 for text in folder.events_file.read_text().splitlines())
