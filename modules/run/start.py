"""Starts a run from the command line or the window: plans it, reports deviations from the config, supervises it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from modules.config import ConfigError, TrainConfig
from modules.config.own_builders import check_own_builders
from modules.machine import PortReservations
from modules.run.folder.error_rules import PORT_IN_USE
from modules.run.folder.events import EventLog
from modules.run.folder.failures import Failure
from modules.run.folder.pidfile import pidfile_held
from modules.run.folder.run_folder import RunFolder
from modules.run.hosts.host import Host
from modules.run.join.join_line import remove_join_line
from modules.run.join.join_token import check_token
from modules.run.launch.plan import LaunchPlan
from modules.run.start_machines import MachinesStart, plan_of, print_plan
from modules.run.supervise.outcome import STARTING, RunOutcome
from modules.run.supervise.supervisor import Supervisor

_PORT_TRIES: Final = 4
_NO_GROUP: Final = ("process_group", PORT_IN_USE)
ALONE: Final = "Note: the processes could not form a group (see above), so one device trains instead."

Echo = Callable[[str], None]


def start_run(
    config: TrainConfig,
    folder: RunFolder,
    echo: Echo,
    *,
    extra_args: Sequence[str] = (),
    require_multi_gpu: bool = False,
    token: str | None = None,
    hosts: Sequence[Host] = (),
    joining: Sequence[str] = (),
) -> int:
    """Run `config` in `folder` to its end and return its exit code.

    If the processes of this machine cannot form a group before the first step, one device trains instead, unless
    `require_multi_gpu`. A run on several machines waits for them to join, with `token` or a generated one; it starts
    `hosts` itself over ssh, and another computer has the machines of the names `joining` join.
    Raises TandemError if this machine cannot run the config, or another machine does not join.
    """
    with pidfile_held(folder), PortReservations() as ports:
        remove_join_line(folder)  # with the token of an earlier start that was killed
        plan = plan_of(config, folder, extra_args, ports, require_multi_gpu=require_multi_gpu)
        if plan.num_nodes > 1:
            events = EventLog(folder.events_file)
            try:
                return MachinesStart(config, folder, echo, events, extra_args, ports, hosts, joining).run(plan, token)
            finally:
                remove_join_line(folder)
                events.close()
        return _start_single_machine(config, plan, folder, echo, extra_args, ports, require_multi_gpu=require_multi_gpu)


def check_start(config: TrainConfig, *, require_multi_gpu: bool, token: str | None) -> None:
    """Raise ConfigError, before a run folder is created, for a config that this machine cannot start."""
    LaunchPlan.from_config(config, config_path="config.json", require_multi_gpu=require_multi_gpu)
    check_own_builders(config)
    if token is not None:
        check_token(token)
        if config.num_nodes == 1:
            raise ConfigError("the token is for runs on several machines, but num_nodes is 1")


def _start_single_machine(
    config: TrainConfig,
    plan: LaunchPlan,
    folder: RunFolder,
    echo: Echo,
    extra_args: Sequence[str],
    ports: PortReservations,
    *,
    require_multi_gpu: bool,
) -> int:
    for left in reversed(range(_PORT_TRIES)):
        print_plan(plan, echo)
        supervisor = Supervisor.from_plan(plan, folder, may_restart=_port_was_taken if left else None)
        code = supervisor.run()
        if not supervisor.can_restart:
            break
        echo(f"Note: another program took port {plan.port} at the same moment, so training starts with another one.")
        plan = plan_of(config, folder, extra_args, ports, require_multi_gpu=require_multi_gpu)
    may_train_alone = plan.world_size != 1 and not require_multi_gpu and not supervisor.is_stopped
    if not may_train_alone or not failed_to_form_group(supervisor.outcome):
        return code
    echo(ALONE)
    return Supervisor.from_plan(plan_of(on_one_device(config), folder, extra_args, ports), folder).run()


def _port_was_taken(failure: Failure) -> bool:
    """Between the choice of a free port and its use, by a program that knows nothing of reservations."""
    return failure.kind == PORT_IN_USE


def on_one_device(config: TrainConfig) -> TrainConfig:
    """The same training in one process."""
    return config.model_copy(update={"training_mode": "single", "world_size": None, "processes_per_node": None})


def failed_to_form_group(outcome: RunOutcome | None) -> bool:
    """Whether the processes could not form a group; the first phase starts only once they have."""
    failure = None if outcome is None else outcome.failure
    return outcome is not None and failure is not None and failure.kind in _NO_GROUP and outcome.phase == STARTING
