"""The launch plan of a run in its folder, and what is printed of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modules.config import TrainConfig
from modules.machine import PortReservations
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.plan import LaunchPlan

Echo = Callable[[str], None]


def plan_of(
    config: TrainConfig,
    folder: RunFolder,
    extra_args: Sequence[str],
    ports: PortReservations,
    *,
    require_multi_gpu: bool = False,
) -> LaunchPlan:
    """The plan of a run in its folder, with a port that is reserved in `ports`.

    Raises ConfigError if this machine cannot run it.
    """
    return LaunchPlan.from_config(
        config,
        config_path=folder.config_file,
        run_folder=folder.path,
        extra_args=extra_args,
        require_multi_gpu=require_multi_gpu,
        is_free=ports.take,
    )


def print_plan(plan: LaunchPlan, echo: Echo, *, skip: Sequence[str] = ()) -> None:
    """Print what differs from the config, and the variables."""
    for reason in plan.reasons:
        if reason not in skip:
            echo(f"Note: {reason}.")
    for sentence in plan.variables.describe():
        echo(sentence)
