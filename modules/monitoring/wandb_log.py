"""Weights & Biases, for those who ask for it: scalars, sample images and the config of a run."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from modules.config import ConfigError, TrainConfig
from modules.config.hyperparameters import HyperParameter
from modules.files import FileFault, decode_json, read_bytes
from modules.files.videos import video_beside
from modules.monitoring.background import BackgroundThread
from modules.monitoring.tensorboard import Histogram

log = logging.getLogger("tandem")
_ID_FILE: Final = "wandb.json"  # in the run folder: a resumed run continues the same run of W&B
_MOST_ID_BYTES: Final = 1000
_LEAVE_WITHIN_S: Final = 60.0  # for what is still to be sent at the end
_STEP: Final = "step"


def check_wandb(config: TrainConfig) -> None:
    """Raises ConfigError if the config asks for W&B and its package is not installed."""
    spec = find_spec("wandb") if config.wandb != "off" else None
    if config.wandb != "off" and (spec is None or spec.origin is None):  # a folder of that name has no origin
        raise ConfigError(
            f"wandb is {config.wandb!r}, which needs the package wandb; it is not installed.",
            "Run `.venv/bin/python -m pip install wandb`, or set wandb to 'off'.",
        )


class WandbLog:
    """Sends what TensorBoardWriter writes to W&B, in a thread; whatever fails there costs one warning and no step.

    Of the config only the hyper-parameters are sent, and nothing about machine, program, console or code.
    """

    def __init__(
        self,
        config: TrainConfig,
        hyperparameters: Mapping[str, HyperParameter],
        folder: Path,
        warn: Callable[[str], object] = log.warning,
    ) -> None:
        self._config, self._hyperparameters, self._folder, self._warn = config, hyperparameters, folder, warn
        self._run: Any = None
        self._has_failed = False
        self._thread = BackgroundThread("wandb", most_waiting=0)
        self._has_started = False

    def start(self) -> None:
        """Begin, or continue, the run of W&B; before, nothing is sent."""
        self._has_started = True
        self._submit(self._start)

    def add_scalars(self, scalars: Mapping[str, float], step: int) -> None:
        """The scalars of one step."""
        self._submit(lambda: self._run.log({**scalars, _STEP: step}))

    def add_png(self, tag: str, file: Path, step: int) -> None:
        """An image in a PNG file, or the video whose first frame it is."""

        def send() -> None:
            import wandb

            video = video_beside(file)
            shown = wandb.Image(str(file)) if video is None else wandb.Video(str(video), format="mp4")
            self._run.log({tag: shown, _STEP: step})

        self._submit(send)

    def add_histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        """The distributions of one step by tag."""

        def send() -> None:
            import wandb

            shown = {
                tag: wandb.Histogram(np_histogram=(list(each.counts), [each.least, *each.limits]))
                for tag, each in histograms.items()
            }
            self._run.log({**shown, _STEP: step})

        self._submit(send)

    def close(self) -> None:
        """Send what is still waiting, for at most a minute."""
        self._submit(self._finish)
        leaving = threading.Thread(target=self._thread.close, daemon=True)
        leaving.start()
        leaving.join(_LEAVE_WITHIN_S)
        if leaving.is_alive():
            self._fail(f"it has not taken everything within {_LEAVE_WITHIN_S:.0f} s")

    # In the thread

    def _submit(self, work: Callable[[], None]) -> None:
        def guarded() -> None:
            if self._has_failed or not self._has_started:
                return
            try:
                work()
            except Exception as error:  # noqa: BLE001  # another program's client: it must not end the run
                self._fail(str(error).strip().split("\n")[0] or type(error).__name__)

        self._thread.submit(guarded)

    def _fail(self, reason: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._warn(f"Weights & Biases gets nothing more of this run: {reason}. Training continues.")

    def _start(self) -> None:
        import wandb

        settings = wandb.Settings(
            silent=True,
            console="off",
            host="tandem",
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,
            symlink=False,  # a run folder holds no links
            x_disable_machine_info=True,
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(
            project=self._config.wandb_project,
            name=self._folder.name,
            id=_run_id(self._folder),
            resume="allow",
            mode=self._config.wandb,
            dir=str(self._folder),
            config=dict(self._hyperparameters),
            settings=settings,
        )
        self._run.define_metric("*", step_metric=_STEP)  # validations come after later steps

    def _finish(self) -> None:
        self._run.finish()


def _run_id(folder: Path) -> str:
    """The id of the run of W&B, kept in the run folder."""
    file = folder / _ID_FILE
    with suppress(OSError, FileFault):
        found = decode_json(read_bytes(file, _MOST_ID_BYTES))
        if isinstance(found, dict) and isinstance(own := found.get("id"), str) and own.isalnum():
            return own
    new = secrets.token_hex(8)
    file.write_text(json.dumps({"id": new}) + "\n", encoding="utf-8")
    return new
