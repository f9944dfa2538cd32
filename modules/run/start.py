"""Starts a run from the command line or the window: plans it, reports deviations from the config, supervises it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from modules.config import ConfigError, TandemError, TrainConfig
from modules.run.exit_codes import FAILED
from modules.run.folder.events import EventLog
from modules.run.folder.failures import record_failure, root_cause
from modules.run.folder.pidfile import pidfile_held
from modules.run.folder.run_folder import RunFolder
from modules.run.join.join_line import remove_join_line, write_join_line
from modules.run.join.local_settings import check_token
from modules.run.join.server import JoinServer
from modules.run.join.session import StopRequested, raise_on_stop_signals
from modules.run.launch.plan import LaunchPlan
from modules.run.supervise.outcome import STARTING, RunOutcome, outcome_message
from modules.run.supervise.supervisor import Supervisor

# Other machines take a while to notice a killed process; a failed run must end within 30 s overall.
_COLLECT_REMOTE_S: Final = 10.0

Echo = Callable[[str], None]


def start_run(
    config: TrainConfig,
    folder: RunFolder,
    echo: Echo,
    *,
    extra_args: Sequence[str] = (),
    require_multi_gpu: bool = False,
    token: str | None = None,
) -> int:
    """Run `config` in `folder` to its end and return its exit code.

    If the processes of this machine cannot form a group before the first step, one device trains instead, unless
    `require_multi_gpu`. A run on several machines waits for them to join, with `token` or a generated one.
    Raises TandemError if this machine cannot run the config, or another machine does not join.
    """
    with pidfile_held(folder):
        plan = _plan(config, folder, extra_args, require_multi_gpu=require_multi_gpu)
        if plan.num_nodes > 1:
            events = EventLog(folder.events_file)
            try:
                return _start_multi_machine(config, plan, folder, echo, events, extra_args, token)
            finally:
                remove_join_line(folder)
                events.close()
        return _start_single_machine(config, plan, folder, echo, extra_args, require_multi_gpu=require_multi_gpu)


def check_start(config: TrainConfig, *, require_multi_gpu: bool, token: str | None) -> None:
    """Raise ConfigError, before a run folder is created, for a config that this machine cannot start."""
    LaunchPlan.from_config(config, config_path="config.json", require_multi_gpu=require_multi_gpu)
    if token is not None:
        check_token(token)
        if config.num_nodes == 1:
            raise ConfigError("--token is for runs on several machines, but num_nodes is 1")


def _start_single_machine(
    config: TrainConfig,
    plan: LaunchPlan,
    folder: RunFolder,
    echo: Echo,
    extra_args: Sequence[str],
    *,
    require_multi_gpu: bool,
) -> int:
    _print_plan(plan, echo)
    supervisor = Supervisor.from_plan(plan, folder)
    code = supervisor.run()
    if plan.world_size == 1 or require_multi_gpu or not _failed_to_form_group(supervisor.outcome):
        return code
    echo("Note: the processes could not form a group (see above), so one device trains instead.")
    single = config.model_copy(update={"training_mode": "single", "world_size": None, "processes_per_node": None})
    return Supervisor.from_plan(_plan(single, folder, extra_args, require_multi_gpu=False), folder).run()


def _failed_to_form_group(outcome: RunOutcome | None) -> bool:
    """Whether the processes could not form a group; the first phase starts only once they have."""
    failure = None if outcome is None else outcome.failure
    return outcome is not None and failure is not None and failure.kind == "process_group" and outcome.phase == STARTING


def _start_multi_machine(
    config: TrainConfig,
    plan: LaunchPlan,
    folder: RunFolder,
    echo: Echo,
    events: EventLog,
    extra_args: Sequence[str],
    token: str | None,
) -> int:
    """As machine 0: let the other machines join, and start when all have."""

    is_waiting = True

    def report(message: str, missing: list[int]) -> None:
        echo(message)
        if is_waiting:
            events.write("joining", message=message, missing=missing)

    try:
        server = JoinServer(
            config,
            folder.name,
            report,
            token=token,
            resume=_value_of("--resume", extra_args),
            record=lambda failure: record_failure(folder, failure, keep_existing=True),
        )
    except TandemError as error:
        _record_end(events, error.kind, error.exit_code, error)
        raise
    try:
        with raise_on_stop_signals():
            if plan.port == server.port:  # the join server has just taken the port that was free
                plan = _plan(config, folder, extra_args)
            _show_join_line(config, plan, server, folder, echo)
            waiting = f"Waiting up to {config.startup_timeout_s} s ({server.summary()})."
            echo(f"{waiting} Ctrl-C ends the wait.")
            events.write("joining", message=waiting, missing=server.missing_numbers())
            counts = server.wait(config.startup_timeout_s)
            joined = {"processes_per_node": (plan.processes_here, *(counts[n] for n in sorted(counts)))}
            printed = plan.reasons
            plan = _plan(config.model_copy(update={**joined, "world_size": None}), folder, extra_args)
    except StopRequested as stop:
        echo(f"Stopped while waiting for machines ({server.summary()}).")
        server.close("it was stopped while waiting for machines")
        _record_end(events, "interrupted", stop.exit_code)
        return stop.exit_code
    except TandemError as error:
        server.close(error.message)
        _record_end(events, error.kind, error.exit_code, error)
        raise
    report(f"All {plan.num_nodes} machines have joined: {' + '.join(map(str, plan.process_counts))} processes.", [])
    is_waiting = False  # later messages, of machines that rejoin, must not follow the `finished` event
    _print_plan(plan, echo, skip=printed)
    server.start([count or 1 for count in plan.process_counts], plan.port)
    supervisor = Supervisor.from_plan(
        plan, folder, lambda: server.wait_for_reports(_COLLECT_REMOTE_S, lambda: _is_cause_known(folder))
    )
    try:
        return supervisor.run()
    finally:
        server.close("" if supervisor.outcome is None else outcome_message(supervisor.outcome, folder))


def _show_join_line(config: TrainConfig, plan: LaunchPlan, server: JoinServer, folder: RunFolder, echo: Echo) -> None:
    if server.port != config.initial_port + 1:
        echo(f"Note: machines join at port {server.port} instead of {config.initial_port + 1}, which is in use.")
    for reason in plan.reasons:
        echo(f"Note: {reason}.")
    others = "the other machine" if plan.num_nodes == 2 else f"each of the {plan.num_nodes - 1} other machines"
    echo(f"This is machine 0 of {plan.num_nodes}. Run this on {others}, in Tandem's folder:")
    join_line = plan.join_line(server.port, server.token)
    echo(f"\n  {join_line}\n")
    write_join_line(folder, join_line)


def _print_plan(plan: LaunchPlan, echo: Echo, *, skip: Sequence[str] = ()) -> None:
    for reason in plan.reasons:
        if reason not in skip:
            echo(f"Note: {reason}.")
    for sentence in plan.variables.describe():
        echo(sentence)


def _plan(
    config: TrainConfig, folder: RunFolder, extra_args: Sequence[str], *, require_multi_gpu: bool = False
) -> LaunchPlan:
    return LaunchPlan.from_config(
        config,
        config_path=folder.config_file,
        run_folder=folder.path,
        extra_args=extra_args,
        require_multi_gpu=require_multi_gpu,
    )


def _is_cause_known(folder: RunFolder) -> bool:
    """Whether a primary failure has been recorded."""
    cause = root_cause(folder)
    return cause is not None and not cause.is_secondary


def _value_of(flag: str, arguments: Sequence[str]) -> str:
    return arguments[arguments.index(flag) + 1] if flag in arguments else ""


def _record_end(events: EventLog, kind: str, exit_code: int, error: TandemError | None = None) -> None:
    """Write the final events of a run that never started, for the window, and to free its name for another run."""
    if error is not None:
        events.write("error", rank=0, host="", kind=kind, message=error.message, advice=error.advice)
    events.write("finished", reason="failed" if exit_code == FAILED else kind, exit_code=exit_code)
