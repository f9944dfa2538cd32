"""Run folders that somebody prepared: what resume, the list of runs and the choice of a backup make of them."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path
from random import Random

from app.monitor.run_list import RunList, setting_differences
from modules.checkpoint import Backups, read_backup
from modules.config import TrainConfig, dump, load_config
from modules.config.io.text_formats import write_json
from modules.run import RunFolder
from modules.run.folder.events import EventLog
from modules.run.folder.resume import backup_at, check_resume, folder_to_resume, newest_run
from modules.run.folder.run_folder import check_run_name_free
from tests.checkpoint.states import state_at
from tests.torture.kind import Places
from tests.torture.mutations import WORDS, bytes_changed, file_changed, file_replaced, json_changed


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        for name, steps in (("a", (1, 2)), ("b", (3,))):
            config = TrainConfig(runs_dir=str(places.seeds / "runs"), run_name=name, family="demo")
            folder = RunFolder.create(config)
            log = EventLog(folder.events_file)
            log.write("started", config={"family": "demo"}, total_steps=9)
            log.write("finished", reason="stopped", exit_code=0)
            log.close()
            for step in steps:
                Backups(folder.backup_dir, keep=5).write(state_at(step), write_json(dump(config)))
            shutil.copytree(
                folder.backup_dir / f"step-{steps[0]:06d}", folder.backup_dir / f".partial-former-step-{9:06d}"
            )

        # what a mutant's links lead to: a whole run, in which something may be written or removed
        shutil.copytree(places.seeds / "runs" / "a", places.outside / "run", dirs_exist_ok=True)

    def make(self, draw: Random) -> None:
        runs = Path(shutil.copytree(self._places.seeds / "runs", self._places.case / "runs"))
        for _ in range(draw.choice((1, 1, 2, 3))):
            paths = sorted(path for path in runs.rglob("*") if not path.is_symlink())
            path, chosen = draw.choice(paths), draw.random()
            if chosen < 0.35:
                file_replaced(path, self._places.outside, draw)
            elif chosen < 0.6:
                file_changed(path, json_changed if path.suffix == ".json" else bytes_changed, draw)
            elif chosen < 0.75:  # another name
                with suppress(OSError, ValueError):
                    path.rename(path.with_name(draw.choice((*_NAMES, *WORDS)).replace("/", "_")))
            elif chosen < 0.9 and path.parent != runs:  # a folder that leads elsewhere; a run folder itself may
                with suppress(OSError):
                    path.rename(path.with_name(f".was-{path.name}"))
                    path.symlink_to(draw.choice((*self._elsewhere(path), Path(".."), Path("/"), path)))
            else:
                with suppress(OSError):
                    os.mkdir(path.with_name(draw.choice(_NAMES)))
        (self._places.case / "name").write_text(draw.choice(("a", "b", "")))

    def _elsewhere(self, path: Path) -> tuple[Path, ...]:
        """What has the same name in a run outside, and a folder of something else."""
        run = self._places.outside / "run"
        same = next((each for each in sorted(run.rglob("*")) if each.name == path.name), run)
        return same, same, self._places.outside / "folder"

    def read(self) -> str:
        runs = self._places.case / "runs"
        name = (self._places.case / "name").read_text() or None
        RunList().scan(runs)
        setting_differences([runs / "a", runs / "b"])
        config = TrainConfig(runs_dir=str(runs), run_name=name, family="demo")
        with suppress_refusal():
            check_run_name_free(runs, "a")
        check_resume(config, "latest")
        folder = folder_to_resume(config, "latest")
        assert folder.name == (name or newest_run(runs, config.family))
        load_config(folder.config_file)
        newest, damaged = Backups(folder.backup_dir, keep=1).newest_valid()
        if newest is None:
            return "; ".join(damaged) or "it has no backup"
        check_resume(TrainConfig(runs_dir=str(runs), family="demo"), str(newest))
        backup_at(str(newest))
        read_backup(newest)
        Backups(folder.backup_dir, keep=1).write(state_at(12), "{}")
        return ""


_NAMES = ("step-000002", "step-1", "step-9999999999999999", "step-000000", ".partial-former-step-000007",
          ".partial-former-x", "latest", "machine-1.json", "received", "manifest.json", "step-000003\n")  # fmt: skip


def suppress_refusal() -> suppress:
    """For calls that are expected to refuse."""
    from modules.config import TandemError

    return suppress(TandemError)
