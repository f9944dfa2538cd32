"""Starting a run from the command line or the window: plan it, say what differs from the wish, watch over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from modules.config import TrainConfig
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
    supervisor = Supervisor.of_plan(plan, folder)
    code = supervisor.run()
    failure = supervisor.ending.failure if supervisor.ending is not None else None
    if plan.world_size == 1 or require_multi_gpu or failure is None or failure.kind != "process_group":
        return code
    say("Note: several processes could not work together (above), so one device trains instead.")
    alone = config.model_copy(update={"training_mode": "single", "num_nodes": 1, "world_size": None})
    return Supervisor.of_plan(_plan(alone, folder, extra_args, require_multi_gpu=False), folder).run()


def _plan(config: TrainConfig, folder: RunFolder, extra_args: Sequence[str], *, require_multi_gpu: bool) -> LaunchPlan:
    return LaunchPlan.from_config(
        config,
        config_path=folder.config_file,
        run_folder=folder.path,
        extra_args=extra_args,
        require_multi_gpu=require_multi_gpu,
    )
