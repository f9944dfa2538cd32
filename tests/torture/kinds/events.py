"""What the window and the command line read of a run folder that is there: events, logs, failures, commands."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from functools import partial
from random import Random

from app.monitor.log_reader import LogReader
from app.monitor.run_list import RunList, read_view, setting_differences
from app.monitor.samples import SampleIndex
from app.runs.liveness import read_liveness
from app.runs.status import status_of
from modules.config import TrainConfig
from modules.files import printable
from modules.machine import hostname
from modules.run import RunFolder
from modules.run.folder.commands import Commands
from modules.run.folder.event_reader import read_events
from modules.run.folder.events import EventLog
from modules.run.folder.failures import Failure, read_failures, record_failure, root_cause
from modules.run.folder.folder_guard import remove_unstarted_run
from modules.run.folder.pidfile import write_pidfile
from modules.run.html_report import write_report
from modules.run.join.join_line import read_join_line, write_join_line
from tests.torture.kind import Places
from tests.torture.mutations import file_changed, file_replaced, json_changed, text_changed


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        config = TrainConfig(runs_dir=str(places.seeds), run_name="x", family="demo")
        folder = RunFolder.create(config)
        _write_run(folder)
        self._files: Mapping[str, bytes] = {
            str(file.relative_to(folder.path)): file.read_bytes()
            for file in sorted(folder.path.rglob("*"))
            if file.is_file() and not file.name.endswith(".lock")
        }

    def make(self, draw: Random) -> None:
        folder = RunFolder(self._places.case / "x")
        folder.make_directories()
        for name, data in self._files.items():
            (folder.path / name).write_bytes(data)
        for name in draw.choices(list(self._files), k=draw.choice((1, 1, 2, 3))):
            file = folder.path / name
            if draw.random() < 0.08:
                file_replaced(file, self._places.outside, draw)
            else:
                file_changed(file, partial(_changed, file.suffix), draw)

    def read(self) -> str:
        folder = RunFolder(self._places.case / "x")
        view = read_view(folder)
        liveness = read_liveness(folder)
        status = status_of(view, liveness, time.time())
        assert liveness.launcher is None, "it would stop a process that is not of this folder"
        index = SampleIndex()
        index.update(view, folder)
        for summary in RunList().scan(folder.path.parent):
            assert summary.path == folder.path
        setting_differences([folder.path, folder.path])
        write_report(folder)
        log = LogReader(folder)
        log.poll()
        log.close()
        for line in log.lines:
            assert line.text == printable(line.text, 4000)
        Commands(folder).pending()
        read_join_line(folder)
        cause = root_cause(folder)
        assert (cause is None) == (not read_failures(folder))
        read_events(folder.events_file)
        remove_unstarted_run(folder)
        return "" if view.time or status.problem is None else "nothing is known of this run"


def _changed(suffix: str, data: bytes, draw: Random) -> bytes:
    if suffix == ".json":
        return json_changed(data, draw)
    if suffix == ".jsonl" and data and draw.random() < 0.8:
        lines = data.splitlines()
        for _ in range(draw.choice((1, 2, 5))):
            at = draw.randrange(len(lines))
            lines[at] = json_changed(lines[at], draw)
        return b"\n".join(lines) + b"\n"
    return text_changed(data.decode("utf-8", "replace"), draw)


def _write_run(folder: RunFolder) -> None:
    """What a run leaves: every kind of event, a failed rank, logs, a pidfile and a command."""
    log = EventLog(folder.events_file)
    log.write("phase", phase="loading")
    log.write("joining", message="machine 1 has joined", missing=[1])
    row = {"rank": 0, "host": "alpha", "device": "cuda:0", "memory_mib": 80000, "step_s": 0.5, "gpu": 0.9}
    log.write("started", config={"family": "demo"}, devices=["cpu"], total_steps=20, host="alpha", ranks=[row])
    for step in range(1, 9):
        log.write("step", step=step, epoch=0, loss=0.5 / step, lr=1e-4, grad_norm=1.5, samples_per_s=8.0, eta_s=30.0)
        log.write("ranks", step=step, ranks=[row, row | {"rank": 1}])
        log.write("validation", step=step, loss=0.4, set="validation")
    log.write("sample", file="samples/000008-0.png", prompt="a cat", step=8)
    log.write("backing_up", step=8)
    log.write("backup", step=8, path="backup/step-000008")
    log.write("warning", message="The cache folder is not shared.")
    log.write("error", rank=1, host="beta", kind="out_of_memory", message="It is out of memory.", advice="Use less.")
    log.write("finished", reason="failed", exit_code=3)
    log.close()
    for rank in (0, 1):
        record_failure(folder, Failure(rank, "alpha", "error", "It failed.", "Try again.", "Traceback (...)\n  x\n"))
    start = {"rank": 0, "host": "a", "kind": "config", "message": "No.", "advice": "", "traceback": "", "time": 1e9}
    folder.start_failure_file.write_text(json.dumps(start))
    folder.console_file.write_text("Loading\rLoading the model\nTraining\n")
    folder.launcher_log.write_text("W1122 torchrun started\nerror: rank 1 exited with 3\n")
    write_pidfile(folder, 1)
    mark = {"pid": 1, "started": 1.0, "host": hostname(), "marked": 2.0}
    (folder.log_dir / "launcher.json").write_text(json.dumps(mark))
    write_join_line(folder, "./train_distributed.sh --join 10.0.0.1:12356 --token 0123456789abcdef01234567")
    (folder.commands_dir / "stop").write_text("paused")
