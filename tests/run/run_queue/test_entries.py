"""The queue's folder: adding, ordering and removing, many editors at once, and folders from elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from modules.config import Concept, ConfigError, TrainConfig, dump, file_access, load_config, save_config
from modules.data.index.scan import concept_root
from modules.machine import Gpu
from modules.run.folder.pidfile import pidfile_held
from modules.run.folder.run_lock import supervisor_lock
from modules.run.hosts.host import Host
from modules.run.hosts.host_list import add_host, remove_host
from modules.run.launch.detached import create_run
from modules.run.queue import active_run
from modules.run.queue.active_run import ActiveRun, EntryChanged, resources_in_use
from modules.run.queue.differences import Differences, differing
from modules.run.queue.entries import MOST_ENDED, Entry, Queue, Resources, parse_devices
from modules.run.queue.folder import RunQueue
from modules.run.queue.runner import QueueRunner
from scripts import run_queue
from tests.runs import ROOT, TINY, environment, tiny_config

ADD = """
import sys
from modules.config import load_config
from modules.run.queue.folder import RunQueue
config = load_config(sys.argv[2])
for _ in range(int(sys.argv[3])):
    RunQueue(sys.argv[1]).add(config)
"""


def config_in(place: Path, **settings: object) -> TrainConfig:
    """Of the tiny family on the CPU; nothing is trained here."""
    return tiny_config(place / "images", place, device="cpu", **settings)


def numbers(queue: RunQueue) -> list[int]:
    return [entry.number for entry in queue.read().waiting]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such owners")
def test_the_queue_of_another_user_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    queue = RunQueue(tmp_path / "runs")
    entry = queue.add(config_in(tmp_path, run_name="cats"))
    save_config(config_in(tmp_path), tmp_path / "dogs.json")
    before = {file.name: file.read_bytes() for file in queue.path.iterdir() if file.suffix == ".json"}
    monkeypatch.setattr(file_access, "_own_users", set)
    for arguments in (["list"], ["add", str(tmp_path / "dogs.json")], ["run"], ["remove", "1"], ["clear"]):
        assert run_queue.main([*arguments, "--runs_dir", str(tmp_path / "runs")]) == 2
        said = capsys.readouterr().err
        assert "queue.json belongs to another user of this computer" in said, arguments
        assert "Nothing was changed. Use a runs folder of your own" in said
    with pytest.raises(ConfigError, match=r"config-1\.json belongs to another user"):
        queue.load(entry)
    assert {file.name: file.read_bytes() for file in queue.path.iterdir() if file.suffix == ".json"} == before
    assert not (tmp_path / "runs" / "cats").exists()


def test_an_entry_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "images").mkdir()
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "cats.json"
    save_config(config_in(Path(), run_name="cats", learning_rate=0.5), file)  # with paths below the current folder
    queue = RunQueue("runs")
    for _ in range(2):
        assert run_queue.main(["add", str(file), "--set", "max_steps=7", "--devices", "1, 0"]) == 0
    file.write_text("{}")
    first, second = queue.read().waiting
    assert (first.name, second.name) == ("cats", "cats-2")
    assert "cats is taken, so this run is named cats-2" in capsys.readouterr().out
    assert second.devices == [0, 1]
    config = queue.load(second)
    assert (config.run_name, config.max_steps, config.learning_rate) == ("cats-2", 7, 0.5)
    assert config.runs_dir == str(tmp_path / "runs")
    assert config.concepts[0].path == str(tmp_path / "images")
    assert Path(config.cache_dir) == tmp_path / "cache"
    assert config.device_ids is None, "there are none beside device=cpu"
    assert run_queue.main(["add", str(file), "--set", "device_ids=[5]", "--devices", "any"]) == 0
    assert run_queue.main(["devices", "2", "any"]) == 0
    assert [entry.devices_text for entry in queue.read().waiting] == ["0,1", "all", "any 1"], "the last on any device"


def test_a_folder_above_a_link_is_the_one_that_the_system_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`link/..` is the folder above what the link points to; runs written through it are the queue's own."""
    (tmp_path / "disk" / "projects" / "images").mkdir(parents=True)
    (tmp_path / "disk" / "projects" / "cats").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "projects" / "cats")
    monkeypatch.chdir(tmp_path)
    config = config_in(Path(), run_name="cats", runs_dir="link/../runs")
    config = config.model_copy(update={"concepts": (Concept(path="link/../images"),)})
    queue = RunQueue(config.runs_dir)
    entry = queue.add(config)
    assert (tmp_path / "disk" / "projects" / "runs" / ".queue" / "queue.json").is_file()
    assert not (tmp_path / "runs").exists()
    monkeypatch.chdir("/")
    copy = queue.load(entry)
    assert os.path.samefile(copy.runs_dir, tmp_path / "disk" / "projects" / "runs")
    images = tmp_path / "disk" / "projects" / "images"
    assert os.path.samefile(copy.concepts[0].path, images)
    assert os.path.samefile(concept_root(Concept(path=f"{tmp_path}/link/../images")), images)
    assert RunQueue(copy.runs_dir).read() == queue.read(), "as the runner gets it"


def test_names_are_those_of_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue, family = RunQueue(tmp_path / "runs"), tmp_path / "my family!.py"
    family.write_text("")
    assert queue.add(config_in(tmp_path, run_name=None, family=str(family))).name == "my_family-1"
    save_config(config_in(tmp_path), tmp_path / "x.json")
    assert run_queue.main(["add", str(tmp_path / "x.json"), "--run_name", "a b"]) == 2
    assert "run_name is 'a b'" in capsys.readouterr().err
    assert len(queue.read().entries) == 1


def test_a_long_reason_is_shortened(tmp_path: Path) -> None:
    """What is written can be read again."""
    queue = RunQueue(tmp_path)
    queue.add(config_in(tmp_path))
    queue.edit(lambda found: found.with_entry(found.entry(1).changed(reason="no memory\n\x1b[31m" * 5000)))
    assert queue.read().entry(1).reason.startswith("no memory")


def test_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = RunQueue(tmp_path / "runs")
    for _ in range(3):
        queue.add(config_in(tmp_path, run_name=None))
    queue.add(config_in(tmp_path), first=True)

    def do(*arguments: str) -> int:
        return run_queue.main([*arguments, "--runs_dir", str(queue.runs_dir)])

    assert numbers(queue) == [4, 1, 2, 3]
    for place, order in (("last", [1, 2, 3, 4]), ("up", [1, 2, 4, 3]), ("down", [1, 2, 3, 4]), ("2", [1, 4, 2, 3])):
        assert do("move", "4", place) == 0
        assert numbers(queue) == order
    assert do("move", "4", "0") == 2
    assert do("move", "9", "up") == 2
    listed = ", ".join(entry.title for entry in queue.read().entries)
    assert f"the queue has no entry 9. Its entries are: {listed}" in capsys.readouterr().err.replace("\n", " ")
    assert do("remove", "4") == 0
    assert numbers(queue) == [1, 2, 3]
    assert queue.read().entry(4).state == "removed"
    assert "Entry 4 (x) waits no more; `retry 4` takes it back" in capsys.readouterr().out
    assert 4 not in [entry.number for entry in queue.read().in_order()], "it has never started"
    assert do("retry", "4") == 0
    assert numbers(queue) == [1, 2, 3, 4]
    queue.edit(lambda found: found.with_entry(found.entry(2).changed(started=1.0)))  # and waits again
    assert do("remove", "2", "4") == do("remove", "4") == 0
    capsys.readouterr()
    assert not queue.config_file(4).exists()
    assert do("list") == 0
    assert [line.split()[:3] for line in capsys.readouterr().out.splitlines()] == [
        ["1", "tiny_family-1", "waiting"],
        ["3", "tiny_family-3", "waiting"],
        ["2", "tiny_family-2", "removed"],
        ["2", "waiting.", "No"],
    ]
    assert do("clear") == 0
    assert [entry.number for entry in queue.read().entries] == [1, 3]
    assert not queue.config_file(2).exists()


@pytest.mark.slow
def test_editors_at_once_lose_nothing(tmp_path: Path) -> None:
    queue, file = RunQueue(tmp_path / "runs"), tmp_path / "cats.json"
    save_config(config_in(tmp_path), file)
    argv = [sys.executable, "-c", ADD, str(queue.runs_dir), str(file), "8"]
    editors = [subprocess.Popen(argv, cwd=ROOT, env=environment()) for _ in range(3)]
    while any(editor.poll() is None for editor in editors):
        found = queue.read()  # whole at every moment
        if found.waiting:
            queue.move(found.waiting[-1].number, 0)
    assert [editor.returncode for editor in editors] == [0, 0, 0]
    entries = queue.read().entries
    assert sorted(entry.number for entry in entries) == list(range(1, 25))
    assert len({entry.name for entry in entries}) == 24
    assert {load_config(queue.config_file(entry.number)).run_name for entry in entries} == {e.name for e in entries}


def test_what_a_killed_editor_has_left_half_written_goes(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path / "runs")
    queue.add(config_in(tmp_path))
    (queue.path / ".partial-99999999-queue.json").write_text("{")
    living = queue.path / f".partial-{os.getppid()}-config-7.json"
    living.touch()
    queue.want("pause")
    assert list(queue.path.glob(".partial-*")) == [living]
    assert queue.read().wanted == "pause"


def test_old_entries_are_forgotten(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    ended = [Entry(number=n, name="x", devices=None, added=1.0, state="failed") for n in range(1, MOST_ENDED + 3)]
    open_entry = Entry(number=9999, name="y", devices=None, added=1.0)
    queue.path.mkdir()
    queue.config_file(1).write_text("{}")
    queue.edit(lambda found: found.model_copy(update={"entries": [open_entry, *ended], "next_number": 10_000}))
    queue.edit(lambda found: found.replaced(found.entries))
    assert [entry.number for entry in queue.read().entries][:2] == [9999, 3]
    assert not queue.config_file(1).exists()


@pytest.mark.parametrize("text", ["", "a", "0,0", "-1", "0;1", "٣", "0," * 70 + "1"])
def test_devices_are_checked(text: str) -> None:
    with pytest.raises(ConfigError, match="indices of GPUs"):
        parse_devices(text)


def test_devices_of_an_entry_that_waits_are_chosen(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    queue.add(TrainConfig(learning_rate=1e-4, concepts=(Concept(path="cats"),), device="cpu"), [0])
    queue.add(TrainConfig(learning_rate=2e-4, concepts=(Concept(path="dogs"),), device="cpu"))
    queue.add(TrainConfig(learning_rate=2e-4, device="cpu", ema=True))
    queue.set_devices(2, [1])
    assert queue.read().entry(2).devices == [1]
    queue.set_devices(1, None)
    assert (queue.read().entry(1).devices, queue.load(queue.read().entry(1)).device_ids) == (None, None)
    queue.edit(lambda found: found.with_entry(found.entry(3).changed(state="running")))
    with pytest.raises(ConfigError, match="is running; GPUs are chosen for one that waits"):
        queue.set_devices(3, [0])
    with pytest.raises(ConfigError, match="GPU 5, which the queue has chosen, cannot be used any more"):
        ActiveRun.start(queue, queue.read().entry(2), queue.read().entry(2).changed(given=[5]))
    differences = Differences()
    found = differences.of(queue, queue.read().entries)
    count = {
        number: next(place for place, (option, _) in enumerate(each) if option.path == "epochs")
        for number, each in found.items()
    }
    shown = {number: {option.path: value for option, value in each[: count[number]]} for number, each in found.items()}
    cats, dogs = (str(Path(name).absolute()) for name in ("cats", "dogs"))
    assert shown == {
        1: {"concepts": [cats], "learning_rate": 1e-4, "ema": False},
        2: {"concepts": [dogs], "learning_rate": 2e-4, "ema": False},
        3: {"concepts": [], "learning_rate": 2e-4, "ema": True},  # and its decay is the default
    }
    queue.edit(lambda found: found.with_entry(found.entry(3).changed(state="finished")))
    found = differences.of(queue, queue.read().entries)
    rest = ["epochs", "method", "batch_size", "resolution", "family"]
    alone = [*rest[:2], "learning_rate", *rest[2:]]  # among the ended ones
    assert [option.path for option, _ in found[3]] == alone
    assert [option.path for option, _ in found[1]] == ["concepts", "learning_rate", *rest], "what differs comes first"


def test_settings_of_one_method_alone_are_no_difference() -> None:
    """Beside a fine-tune a LoRA is listed with what was chosen for it, and not with all that it has by default."""

    def listed(*configs: dict[str, object]) -> list[dict[str, object]]:
        dumped = {number: dump(TrainConfig.model_validate(config)) for number, config in enumerate(configs)}
        return [{option.path: value for option, value in each} for each in differing(dumped).values()]

    full: dict[str, object] = {}
    other: dict[str, object] = {"method": "lora"}
    lora = {**other, "lora_rank": 4}
    assert listed(full, lora) == [{"method": "fine_tune"}, {"method": "lora", "lora_rank": 4}]
    assert listed(full, other) == [{"method": "fine_tune"}, {"method": "lora"}]
    assert listed(lora, other) == [{"lora_rank": 4}, {"lora_rank": 16}]


def test_machines_over_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry remembers them, and none of them trains two runs at once, whatever the GPUs of this machine."""
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "settings"))
    for name in ("beta", "gamma"):
        add_host(Host.make(name, name, "~/tandem"))
    file, queue = tmp_path / "cats.json", RunQueue(tmp_path / "runs")
    save_config(config_in(tmp_path), file)
    for devices, hosts in (("0", "beta"), ("1", "beta"), ("1", "gamma"), ("2", "")):
        more = ["--hosts", hosts] if hosts else []
        assert run_queue.main(["add", str(file), "--devices", devices, *more]) == 0
    assert run_queue.main(["add", str(file), "--hosts", "beta,delta"]) == 2
    assert "no machine is named 'delta'; the list has: beta, gamma" in capsys.readouterr().err
    first, second, third, alone = queue.read().waiting
    assert (first.hosts, alone.hosts) == (["beta"], [])
    assert [queue.load(entry).num_nodes for entry in (first, alone)] == [2, 1]
    assert first.resources.overlaps(second.resources)
    assert not first.resources.overlaps(third.resources)
    assert not first.resources.overlaps(alone.resources)
    run_queue.main(["list", "--runs_dir", str(queue.runs_dir)])
    assert "0 + beta" in capsys.readouterr().out.splitlines()[0]
    two = config_in(tmp_path, num_nodes=2, enable_multi_gpu=True, processes_per_node=[1])
    assert queue.add(two, hosts=["gamma", "beta"]).hosts == ["gamma"], "as many as the run has other machines"
    monkeypatch.chdir(ROOT)
    relative = config_in(Path(), cache_dir="cache")
    for names, place in ((["beta"], Path()), ([], ROOT)):
        found = queue.load(
            queue.add(relative.model_copy(update={"num_nodes": 2, "enable_multi_gpu": True}), hosts=names)
        )
        assert Path(found.concepts[0].path) == place / "images", "in Tandem's folder on each machine"
        assert Path(found.cache_dir) == ROOT / "cache"
    remove_host("gamma")
    with pytest.raises(ConfigError, match="no machine is named 'gamma'"):
        ActiveRun.start(queue, third, third.changed(state="running"))
    assert not queue.run_folder(third).path.exists()


def test_what_other_runs_take(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of the folder that was started by hand keeps its GPUs and the machines that it has started."""
    folder = create_run(config_in(tmp_path, run_name="by-hand"))
    assert resources_in_use(tmp_path / "runs", set()) == {}
    (folder.log_dir / "host-beta.txt").touch()
    with supervisor_lock(folder), pidfile_held(folder):
        assert resources_in_use(tmp_path / "runs", set()) == {"by-hand": Resources(None, ())}
        monkeypatch.setattr(active_run, "visible_gpus", lambda environment: [Gpu(n, "", 0, "") for n in (2, 3)])
        data = {**json.loads(folder.config_file.read_text()), "device": "auto"}
        for settings, devices in (({}, [2]), ({"enable_multi_gpu": True}, [2, 3])):
            folder.config_file.write_text(json.dumps({**data, **settings}))
            assert resources_in_use(tmp_path / "runs", set()) == {"by-hand": Resources(devices, ())}
        folder.config_file.write_text(json.dumps({**data, "num_nodes": 2, "device_ids": [0]}))
        assert resources_in_use(tmp_path / "runs", set()) == {"by-hand": Resources([0], ("beta",))}


def test_an_exit_code_alone_is_no_success(tmp_path: Path) -> None:
    """Of a run whose events were lost, and of one killed before it wrote any after those of its last start."""
    queue, entry = RunQueue(tmp_path), Entry(number=1, name="x", devices=None, added=1.0, started=100.0)
    folder = queue.run_folder(entry)
    folder.make_directories()
    folder.events_file.write_text('{"t": 99.0, "type": "finished", "reason": "finished", "exit_code": 0}\n')

    def ended(command: str) -> tuple[int | None, str]:
        with subprocess.Popen([command]) as process:
            process.wait()
            found = ActiveRun(entry, folder, process).ended()
        return found.exit_code, found.reason

    assert ended("true") == (None, f"It ended without saying how; more in {folder.launcher_log}")
    assert ended("false") == (1, "It ended with exit code 1")
    folder.events_file.write_text('{"t": 101.0, "type": "finished", "reason": "cached", "exit_code": 0}\n')
    assert ended("true") == (0, "Images cached")


@pytest.mark.parametrize(("reason", "code"), [("stopped", 130), ("terminated", 143), ("paused", 138)])
def test_a_run_that_somebody_stops_is_no_failure(
    reason: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = RunQueue(tmp_path)
    entry = Entry(number=1, name="x", devices=None, added=1.0, started=100.0, state="running")
    queue.edit(lambda found: found.model_copy(update={"entries": [entry], "next_number": 2}))
    folder = queue.run_folder(entry)
    folder.make_directories()
    event = {"t": 101.0, "type": "finished", "reason": reason, "exit_code": code}
    folder.events_file.write_text(json.dumps(event) + "\n")
    assert QueueRunner(queue, print, stop_on_failure=True).run() == 0
    assert queue.read().entry(1).state == "stopped"
    assert run_queue.main(["list", "--runs_dir", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "failed" not in said
    assert "exit code" not in said
    queue.retry(1)
    assert numbers(queue) == [1]


def test_a_run_folder_that_cannot_be_used_fails_its_entry_alone(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path / "runs")
    for name in ("one", "two"):
        entry = queue.add(config_in(tmp_path, run_name=name))
        queue.edit(lambda found, entry=entry: found.with_entry(entry.changed(started=1.0)))  # type: ignore[misc]
        folder = queue.run_folder(entry).path
        folder.mkdir()
        (folder / "commands").touch()
    assert QueueRunner(queue, print).run() == 3
    assert [entry.state for entry in queue.read().entries] == ["failed", "failed"]
    assert "commands: File exists" in queue.read().entry(1).reason


def _entry(**changes: object) -> dict[str, object]:
    return {"number": 1, "name": "x", "devices": None, "state": "waiting", "added": 1.0, **changes}


def test_an_entry_that_is_changed_as_it_is_about_to_start_is_looked_at_again(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    queue = RunQueue(tmp_path / "runs")
    entry = queue.add(config_in(tmp_path, run_name="cats"))
    queue.edit(lambda found: found.with_waits({entry.number: "Waits until a GPU is free: dogs trains"}))
    read = queue.read().entry(entry.number)
    queue.set_devices(entry.number, [3])
    with pytest.raises(EntryChanged):
        ActiveRun.start(queue, read, read.changed(state="running"))
    changed = queue.read().entry(entry.number)
    assert (changed.state, changed.devices) == ("waiting", [3])
    queue.remove(entry.number)
    with pytest.raises(EntryChanged):
        ActiveRun.start(queue, changed, changed.changed(state="running"))
    assert (queue.read().entry(entry.number).state, queue.read().entry(entry.number).waits) == ("removed", "")
    assert not (tmp_path / "runs" / "cats").exists()


@pytest.mark.parametrize(
    ("entries", "fault"),
    [
        ([_entry(name="../../etc")], "no valid name of a run"),
        ([_entry(name="/etc")], "no valid name of a run"),
        ([_entry(state="executed")], "state"),
        ([_entry(number="1")], "number"),
        ([_entry(devices=[-1])], "devices"),
        ([_entry(hosts=["-oProxyCommand=x"])], "no valid name of a machine"),
        ([_entry(place="-oProxyCommand=x")], "no valid name of a machine"),
        ([_entry(added=1e300)], "added"),
        ([_entry(), _entry()], "two entries have the same number"),
        ([_entry(number=5000)], "next_number is not above those of all entries"),
        ([_entry(number=n) for n in range(1, 2100)], "entries"),
        ("x", "entries"),
    ],
    ids=str,
)
def test_a_file_from_elsewhere(entries: object, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = RunQueue(tmp_path)
    queue.path.mkdir()
    file = queue.path / "queue.json"
    file.write_text(json.dumps({"next_number": 5000, "entries": entries}))
    before = file.read_bytes()
    for action in (["list"], ["run"], ["remove", "1"]):
        assert run_queue.main([*action, "--runs_dir", str(tmp_path)]) == 2
        said = capsys.readouterr().err
        assert str(file) in said
        assert fault in said
        assert "Traceback" not in said
    assert file.read_bytes() == before, "nothing is lost"


def test_a_queue_whose_numbers_are_used_up(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path / "runs")
    queue.edit(lambda found: found.model_copy(update={"next_number": 2**31 - 1}))
    with pytest.raises(ConfigError, match=r"queue\.json is wrong in 'next_number'.*Nothing was changed"):
        queue.add(config_in(tmp_path))


def test_an_entry_is_named_by_its_number_or_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    queue = RunQueue(tmp_path / "runs")
    for name in ("dogs", "cats", "3", "cats"):
        queue.add(config_in(tmp_path, run_name=name))

    def do(*arguments: str) -> int:
        return run_queue.main([*arguments, "--runs_dir", str(queue.runs_dir)])

    assert do("move", "cats", "first") == 0
    assert numbers(queue) == [2, 1, 3, 4]
    assert do("move", "3", "first") == 0, "a number comes before a name"
    assert numbers(queue) == [3, 2, 1, 4]
    assert do("remove", "cats-2", "1") == 0
    assert numbers(queue) == [3, 2]
    assert do("retry", "cats-2") == 0
    assert numbers(queue) == [3, 2, 4]
    assert do("devices", "cats", "all") == 0
    assert do("remove", "cows") == 2
    assert "the queue has no entry cows. Its entries are: 1 (dogs), " in capsys.readouterr().err.replace("\n", " ")


def _linked_config(queue: RunQueue, secret: Path) -> None:
    queue.add(config_in(queue.runs_dir))
    queue.config_file(1).unlink()
    queue.config_file(1).symlink_to(secret)


def _linked_folder(queue: RunQueue, secret: Path) -> None:
    secret.with_name("elsewhere").mkdir()
    queue.path.symlink_to(secret.with_name("elsewhere"))


@pytest.mark.parametrize("prepare", [_linked_config, _linked_folder])
def test_links_are_not_followed(
    prepare: Callable[[RunQueue, Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    queue, secret = RunQueue(tmp_path / "runs"), tmp_path / "secret.json"
    queue.runs_dir.mkdir()
    secret.write_text('{"family": "stolen"}')
    prepare(queue, secret)
    assert run_queue.main(["run", "--runs_dir", str(queue.runs_dir)]) == 2
    assert "link" in capsys.readouterr().err
    assert secret.read_text() == '{"family": "stolen"}'
    assert [path.name for path in queue.runs_dir.iterdir()] == [".queue"]


def test_code_runs_only_if_somebody_has_allowed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    queue = RunQueue(tmp_path / "runs")
    family = tmp_path / "family.py"
    family.write_text(f"from pathlib import Path\nPath({str(tmp_path / 'obeyed')!r}).touch()\n{Path(TINY).read_text()}")
    monkeypatch.setenv("TANDEM_CONFIG_DIR", str(tmp_path / "settings"))
    monkeypatch.delenv("TANDEM_TRUST_CODE")
    queue.add(config_in(tmp_path, family=str(family)))
    assert run_queue.main(["run", "--runs_dir", str(queue.runs_dir)]) == 3
    assert "runs only after you have allowed it" in queue.read().entry(1).reason
    assert run_queue.main(["add", str(queue.config_file(1))]) == 2, "nobody can be asked at night"
    assert "runs only after you have allowed it" in capsys.readouterr().err
    assert not (tmp_path / "obeyed").exists()
    assert not (queue.runs_dir / "x").exists()


def test_nothing_waits(tmp_path: Path) -> None:
    queue = RunQueue(tmp_path)
    assert queue.read() == Queue(entries=[])
    assert run_queue.main(["run", "--runs_dir", str(tmp_path)]) == 0
    assert not queue.has_runner()
