"""Starting a run from the command line or the window: plan it, say what differs from the wish, watch over it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from modules.config import ConfigError, TandemError, TrainConfig
from modules.run.ending import STARTING, Ending, ending_message
from modules.run.events import EventLog
from modules.run.exit_codes import FAILED
from modules.run.failures import record_failure, root_cause
from modules.run.join.host import JoinHost
from modules.run.join.rules import check_token
from modules.run.join.talk import Stopped, stoppable
from modules.run.launch_plan import LaunchPlan
from modules.run.launcher_mark import launcher_marked
from modules.run.run_folder import RunFolder
from modules.run.supervise import Supervisor

# Other machines need a while to notice that a process was killed; with all else a run must end within 30 s.
_HEAR_OTHERS_S: Final = 10.0

Say = Callable[[str], None]


def start_run(
    config: TrainConfig,
    folder: RunFolder,
    say: Say,
    *,
    extra_args: Sequence[str] = (),
    require_multi_gpu: bool = False,
    token: str | None = None,
) -> int:
    """Run `config` in `folder` to its end and return the exit code of the protocol.

    Where several processes of this machine cannot form a group before the first step, one device trains instead,
    unless `require_multi_gpu`. A run on several machines waits for them to join, with `token` or one made here.
    Raises TandemError where this machine cannot do what the config asks, or another does not come.
    """
    with launcher_marked(folder):
        plan = _plan(config, folder, extra_args, require_multi_gpu=require_multi_gpu)
        if plan.num_nodes > 1:
            return _start_machines(config, plan, folder, say, extra_args, token)
        return _start_here(config, plan, folder, say, extra_args, require_multi_gpu=require_multi_gpu)


def check_start(config: TrainConfig, *, require_multi_gpu: bool, token: str | None) -> None:
    """Raise ConfigError, before there is a run folder, for what cannot be started on this machine."""
    LaunchPlan.from_config(config, config_path="config.json", require_multi_gpu=require_multi_gpu)
    if token is not None:
        check_token(token)
        if config.num_nodes == 1:
            raise ConfigError("--token is for runs on several machines, but num_nodes is 1")


def _start_here(
    config: TrainConfig,
    plan: LaunchPlan,
    folder: RunFolder,
    say: Say,
    extra_args: Sequence[str],
    *,
    require_multi_gpu: bool,
) -> int:
    _tell(plan, say)
    supervisor = Supervisor.of_plan(plan, folder)
    code = supervisor.run()
    if plan.world_size == 1 or require_multi_gpu or not _had_no_group(supervisor.ending):
        return code
    say("Note: several processes could not work together (above), so one device trains instead.")
    alone = config.model_copy(update={"training_mode": "single", "world_size": None, "processes_per_node": None})
    return Supervisor.of_plan(_plan(alone, folder, extra_args, require_multi_gpu=False), folder).run()


def _had_no_group(ending: Ending | None) -> bool:
    """Whether the processes could not form a group; once they have, the first phase begins."""
    failure = None if ending is None else ending.failure
    return ending is not None and failure is not None and failure.kind == "process_group" and ending.phase == STARTING


def _start_machines(
    config: TrainConfig, plan: LaunchPlan, folder: RunFolder, say: Say, extra_args: Sequence[str], token: str | None
) -> int:
    """As machine 0: let the others in, and start when all are here."""
    try:
        host = JoinHost(
            config,
            folder.name,
            say,
            token=token,
            resume=_value_of("--resume", extra_args),
            record=lambda failure: record_failure(folder, failure, unless_there=True),
        )
    except TandemError as error:
        _record_end(folder, error.kind, error.exit_code, error)
        raise
    try:
        with stoppable():
            if plan.port == host.port:  # the door has just taken what was free before
                plan = _plan(config, folder, extra_args)
            _invite(config, plan, host, say)
            counts = host.wait(config.startup_timeout_s)
            agreed = {"processes_per_node": (plan.processes_here, *(counts[n] for n in sorted(counts)))}
            told = plan.reasons
            plan = _plan(config.model_copy(update={**agreed, "world_size": None}), folder, extra_args)
    except Stopped as stop:
        say(f"Stopped while waiting for machines ({host.summary()}).")
        host.close("it was stopped while it waited for machines")
        _record_end(folder, "interrupted", stop.exit_code)
        return stop.exit_code
    except TandemError as error:
        host.close(error.message)
        _record_end(folder, error.kind, error.exit_code, error)
        raise
    say(f"All {plan.num_nodes} machines are here: {' + '.join(map(str, plan.process_counts))} processes.")
    _tell(plan, say, told=told)
    host.begin([count or 1 for count in plan.process_counts], plan.port)
    supervisor = Supervisor.of_plan(plan, folder, lambda: host.hear_all(_HEAR_OTHERS_S, lambda: _is_known(folder)))
    try:
        return supervisor.run()
    finally:
        host.close("" if supervisor.ending is None else ending_message(supervisor.ending, folder))


def _invite(config: TrainConfig, plan: LaunchPlan, host: JoinHost, say: Say) -> None:
    if host.port != config.initial_port + 1:
        say(f"Note: machines join at port {host.port} instead of {config.initial_port + 1}, which is in use.")
    for reason in plan.reasons:
        say(f"Note: {reason}.")
    others = "the other machine" if plan.num_nodes == 2 else f"each of the {plan.num_nodes - 1} other machines"
    say(f"This is machine 0 of {plan.num_nodes}. Start this on {others}, in Tandem's folder:")
    say(f"\n  {plan.join_line(host.port, host.token)}\n")
    say(f"Waiting up to {config.startup_timeout_s} s ({host.summary()}). Ctrl-C ends the wait.")


def _tell(plan: LaunchPlan, say: Say, *, told: Sequence[str] = ()) -> None:
    for reason in plan.reasons:
        if reason not in told:
            say(f"Note: {reason}.")
    for sentence in plan.variables.sentences():
        say(sentence)


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


def _is_known(folder: RunFolder) -> bool:
    """Whether somebody has recorded a failure that is no echo of another."""
    cause = root_cause(folder)
    return cause is not None and not cause.is_echo


def _value_of(flag: str, arguments: Sequence[str]) -> str:
    return arguments[arguments.index(flag) + 1] if flag in arguments else ""


def _record_end(folder: RunFolder, kind: str, exit_code: int, error: TandemError | None = None) -> None:
    """The last events of a run that no process began, so that the window knows, and the name may be used again."""
    log = EventLog(folder.events_file)
    if error is not None:
        log.write("error", rank=0, host="", kind=kind, message=error.message, advice=error.advice)
    log.write("finished", reason="failed" if exit_code == FAILED else kind, exit_code=exit_code)
    log.close()
