"""Starting a run from the command line or the window: plan it, say what differs from the wish, watch over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modules.config import TrainConfig
from modules.run.exit_codes import FAILED
from modules.run.failures import root_cause
from modules.run.launch_plan import LaunchPlan
from modules.run.run_folder import RunFolder
from modules.run.supervise import Supervisor


def start_run(
    config: TrainConfig,
    folder: RunFolder,
    say: Callable[[str], None],
    *,
    extra_args: Sequence[str] = (),
    require_multi_gpu: bool = False,
) -> int:
    """Run `config` in `folder` to its end and return the exit code of the protocol.

    Where several processes cannot form a group before the first step, one device trains instead, unless
    `require_multi_gpu`. Raises ConfigError where this machine cannot do what the config asks.
    """
    plan = _plan(config, folder, extra_args, require_multi_gpu=require_multi_gpu)
    for reason in plan.reasons:
        say(f"Note: {reason}.")
    code = Supervisor.of_plan(plan, folder).run()
    if code != FAILED or plan.world_size == 1 or require_multi_gpu or not _group_failed(folder):
        return code
    say("Note: several processes could not work together (above), so one device trains instead.")
    alone = config.model_copy(update={"training_mode": "single", "num_nodes": 1, "world_size": None})
    return Supervisor.of_plan(_plan(alone, folder, extra_args, require_multi_gpu=False), folder).run()


def _plan(
    config: TrainConfig, folder: RunFolder, extra_args: Sequence[str], *, require_multi_gpu: bool
) -> LaunchPlan:
    return LaunchPlan.from_config(
        config,
        config_path=folder.config_file,
        run_folder=folder.path,
        extra_args=extra_args,
        require_multi_gpu=require_multi_gpu,
    )


def _group_failed(folder: RunFolder) -> bool:
    """Whether the run failed because its processes never formed a group."""
    cause = root_cause(folder)
    return cause is not None and cause.kind == "process_group"
