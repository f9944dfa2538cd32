"""Kills runs with SIGKILL and resumes them: `killed_runs.py FOLDER SEED FIRST LAST`; prints a line for each case.

Whichever moment of whichever phase it is, the newest backup is valid, and the resumed run ends in the weights of one
that nobody disturbed. Ranks are forked, so that torch is imported once; all of them are killed at the same time.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from modules.checkpoint import Backups, TrainingState
from modules.config import TrainConfig
from modules.distributed import RankEnv
from modules.run import EventReader, RunFolder
from modules.run.join.keys import STORE_SECRET
from modules.run.launch.store_secret import new_secret
from modules.training.worker import run_worker
from tests.conftest import draw_images
from tests.ports import free_port
from tests.runs import Run, group_settings, opened, same_state, tiny_config, train_alone
from tests.torture.records import print_record

PHASES = ("caching", "training", "backing up", "rotating", "saving", "ending")
KINDS = ((1, "auto"), (1, "auto"), (2, "distributed"), (2, "fully_sharded"))  # ranks and training_mode
IMAGES = 9
END_WITHIN_S = 120.0
SETTINGS: dict[str, object] = {
    "max_steps": 12,
    "backup_every": "2 steps",
    "backups_kept": 2,
    "save_every": "2 steps",
    "saves_kept": 1,
    "sample_every": "5 steps",
    "samples": [{"prompt": "a disc", "width": 16, "height": 16, "steps": 1}],
    "validation_split": 0.2,
    "validate_every": "3 steps",
    "restore_best": True,
    "ema": True,
    "batch_size": 2,
    "family_options": {"dropout": 0.2, "width": 64, "slow_encode_s": 0.02, "slow_step_s": 0.02},
}


class Ranks:
    """The forked processes of a run."""

    def __init__(self, config: TrainConfig, count: int, output: Path) -> None:
        resume = "latest" if Path(config.runs_dir, "x").exists() else None
        self.folder = opened(config, resume)
        os.environ[STORE_SECRET] = new_secret()
        port = free_port()
        self.pids = [self._fork(config, RankEnv(n, n, count, "127.0.0.1", port), resume, output) for n in range(count)]

    def _fork(self, config: TrainConfig, rank_env: RankEnv, resume: str | None, output: Path) -> int:
        if pid := os.fork():
            return pid
        code = 1
        try:
            os.setsid()
            with output.open("a") as file:
                for number in (1, 2):
                    os.dup2(file.fileno(), number)
            is_alone = rank_env.world_size == 1
            if not is_alone:
                os.environ.update(rank_env.environment())
            code = run_worker(config, self.folder, None if is_alone else rank_env, resume=resume, supervised=False)
        except BaseException:  # noqa: BLE001  # whatever it is must not go on as the parent
            traceback.print_exc()
        finally:
            os._exit(code)

    def kill(self) -> None:
        """All at once, with the loader's processes."""
        for pid in self.pids:
            os.killpg(pid, signal.SIGKILL)

    def wait(self) -> list[int]:
        """The exit codes."""
        return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in self.pids]

    def has_ended(self) -> bool:
        """Whether all have; they remain to be waited for."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return all(os.waitid(os.P_PID, pid, flags) is not None for pid in self.pids)


class Cases:
    """The cases of a seed, in one process."""

    def __init__(self, folder: Path, seed: str) -> None:
        self.folder, self.seed = folder, seed
        self.images = folder / "images"
        self.images.mkdir(parents=True)
        draw_images(self.images, IMAGES)
        # one in this process: what is imported late need not be imported by every rank
        code, _ = train_alone(self.config(folder / "warm-up", *KINDS[0]).model_copy(update={"max_steps": 2}))
        assert code == 0
        self.whole: dict[str, TrainingState] = {}  # by ranks and training_mode
        self.training_s = self.backup_s = 0.0

    def config(self, place: Path, ranks: int, mode: str) -> TrainConfig:
        group = {"global_batch_size": 4, **(group_settings(ranks) if ranks > 1 else {}), "training_mode": mode}
        return tiny_config(self.images, place, **{**SETTINGS, **group})

    def undisturbed(self, ranks: int, mode: str) -> TrainingState:
        """The last state of the run on so many ranks."""
        key = f"{mode}-{ranks}"
        if key not in self.whole:
            place = self.folder / f"whole-{key}"
            run = self.run(place, ranks, mode)
            self.whole[key] = run.state
            began, ended = ([float(str(e["t"])) for e in run.events(kind)] for kind in ("backing_up", "backup"))
            self.backup_s = ended[0] - began[0]
            steps = [float(str(event["t"])) for event in run.events("step")]
            self.training_s = steps[-1] - steps[0]
        return self.whole[key]

    def run(self, place: Path, ranks: int, mode: str) -> Run:
        """Train, or resume, to the end."""
        started = Ranks(self.config(place, ranks, mode), ranks, self.folder / "output.txt")
        codes, run = started.wait(), Run(started.folder)
        assert codes == [0] * ranks, (codes, [run.failure(rank) for rank in range(ranks)])
        return run

    def case(self, number: int) -> tuple[bool, str]:
        """Returns whether the run was killed before its end, and when."""
        draw = Random(f"{self.seed} {number}")
        phase, (ranks, mode) = PHASES[number % len(PHASES)], draw.choice(KINDS)
        whole = self.undisturbed(ranks, mode)
        lengths = {"caching": 0.2, "training": self.training_s, "backing up": self.backup_s}
        delay = draw.uniform(0, lengths.get(phase, 0.1))
        if phase == "rotating":  # at the end of a backup
            delay = self.backup_s * draw.uniform(0.85, 1.15)
        skipped = draw.randrange(5)  # backups before the one in which it is killed
        place = self.folder / "case"
        shutil.rmtree(place, ignore_errors=True)
        started = Ranks(self.config(place, ranks, mode), ranks, self.folder / "output.txt")
        self.wait_for(started, phase, skipped)
        time.sleep(delay)
        has_ended = started.has_ended()
        started.kill()
        started.wait()
        what = f"{ranks} rank{'s' * (ranks > 1)} ({mode}), {delay * 1000:.0f} ms after the start of {phase}"
        killed = Run(RunFolder(place / "runs" / "x"))
        newest, damaged = Backups(killed.folder.backup_dir, keep=2).newest_valid()
        assert not damaged, f"{what}: {damaged}"
        complete = killed.events("backup")
        assert newest is not None or not complete, f"{what}: no valid backup"
        if newest is not None and complete:
            assert int(newest.name.removeprefix("step-")) >= int(str(complete[-1]["step"])), f"{what}: {newest}"
        run = self.run(place, ranks, mode)
        assert same_state(run.state, whole), f"{what}: other weights"
        assert (run.folder.model_dir / "weights.safetensors").exists(), what
        left = [path.name for path in run.folder.path.rglob("*partial*")]
        assert not left, f"{what}: {left}"
        return not has_ended, what

    def wait_for(self, started: Ranks, phase: str, skipped: int) -> None:
        """Until the run is in this phase, or has ended."""
        events, seen, deadline = EventReader(started.folder.events_file), 0, time.monotonic() + END_WITHIN_S
        while not started.has_ended():
            assert time.monotonic() < deadline, f"no {phase} in {END_WITHIN_S:.0f} s"
            for event in events.new():
                is_backup = event["type"] == "backing_up" and event.get("step") is not None
                seen += is_backup
                if (
                    (phase in ("caching", "training") and event.get("phase") == phase)
                    or (phase in ("backing up", "rotating") and is_backup and seen > skipped)
                    or (phase == "saving" and event.get("phase") == "saving")
                    or (phase == "ending" and event["type"] == "sample" and event.get("step") != 5 and seen >= 6)
                ):
                    return
            time.sleep(0.002)


def main(folder: Path, seed: str, first: int, last: int) -> None:
    torch.set_num_threads(1)
    with contextlib.redirect_stdout(io.StringIO()):
        cases = Cases(folder, seed)
    for number in range(first, last + 1):
        print_record(number, partial(cases.case, number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
