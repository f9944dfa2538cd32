"""Train: `python scripts/train.py --config FILE [--multi_gpu]`; under torchrun or srun it is one rank of a group."""

from __future__ import annotations

import argparse
import gc
import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import (
    allow_code,
    ask_about_code,
    ask_about_path,
    is_interactive,
    prepare_program,
    quick_imports,
)

prepare_program()
if __name__ == "__mp_main__":  # a spawned rank, which now imports torch; it collects from _run_rank on
    gc.disable()

from modules.config import TandemError, TrainConfig, resolve_config, save_config, total_steps
from modules.config.file_access import set_file_access
from modules.config.io.presets import composition
from modules.machine import visible_gpus
from modules.run import BAD_CONFIG, LaunchPlan, RunFolder
from modules.run.console import echo, warn
from modules.run.demo_images import draw_missing_images
from modules.run.exit_codes import INTERRUPTED
from modules.run.folder.failures import record_start_failure
from modules.run.folder.folder_guard import remove_unstarted_run
from modules.run.folder.resume import check_resume, folder_to_resume, former_config
from modules.run.folder.run_folder import check_run_name_free, not_writable_error
from modules.run.folder.run_lock import check_not_training, supervisor_lock
from modules.run.hosts.measuring import own_place
from modules.run.hosts.stop_from_stdin import stop_at_line_of_stdin
from modules.run.join.client import join_run
from modules.run.join.join_line import join_line_from_config
from modules.run.join.join_token import ask_for_token, take_token
from modules.run.launch.environment import quieten_torch, set_allocator, set_network_interfaces
from modules.run.launch.fatal_startup import previous_fatal_exit_code, report_fatal_startup
from modules.run.launch.preview import absolute_config_path, preview, to_arguments
from modules.run.launch.rank_env import RankEnv, launch_notes, launched_rank_env, read_rank_env, use_own_slice
from modules.run.launch.slurm_environment import check_gpus_of_step
from modules.run.launch.store_secret import NO_SECRET, store_secret
from modules.run.notification import end_told, find_target, notifying, take_notify
from modules.run.queued_output import queued_output
from modules.run.remote.run_copy import mark_copy, read_copy
from modules.run.start import check_start, start_run
from modules.run.supervise.signals import block_pause_signal, ignore_signals_after_stop, ignore_termination_signals
from scripts.train_options import (
    REPEATED_FLAGS,
    check_rank,
    config_of,
    config_of_resumed_run,
    hosts_of,
    join_line,
    joining_of,
    parser,
    token_of,
)


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and train; returns one of the exit codes listed in docs/running.md."""
    block_pause_signal()
    if arguments is None:  # as a program
        ignore_signals_after_stop()
    with queued_output():
        token, notify = take_token(os.environ), take_notify(os.environ)
        options = parser().parse_args(arguments)
        if options.run_folder is None and (code := previous_fatal_exit_code()) is not None:
            return code
        try:
            set_file_access()
            if options.run_folder is not None:
                return run_supervised(RunFolder(Path(options.run_folder)), options)
            if options.join is not None:
                questions = (ask_about_path, ask_about_code) if is_interactive() else ()
                with own_place(os.environ) as own:
                    line = join_line(options, token, own)
                    if options.stop_from_stdin:  # after the token, which comes the same way
                        stop_at_line_of_stdin()
                    return join_run(line, echo, *questions)
            config = config_of(options)
            options.token = token_of(config, options, token)
            options.notify = find_target(options.notify, notify)
            rank_env = launched_rank_env(os.environ, config.initial_port)
            check_rank(config, options, rank_env)
            allow_code(config, trust=options.trust_code, may_ask=rank_env is None)
            if rank_env is None or rank_env.rank == 0:  # the others wait for the run folder
                draw_missing_images(options.config, config)
            if options.verify_parity:
                from modules.training.studies.parity import verify_parity

                return verify_parity(config, print)
            if options.dry_run:
                for note in [] if rank_env is None else launch_notes(config, rank_env, os.environ):
                    echo(note)
                return dry_run(config, options)
            if rank_env is not None:
                return run_as_rank(rank_env, config, options)
            exit_code = start(config, options)
            if arguments is None:  # as a program
                ignore_termination_signals()
            return exit_code
        except TandemError as error:
            if options.start_in is not None:
                record_start_failure(RunFolder(Path(options.start_in)), error)
            if report_fatal_startup(error.exit_code):
                warn(f"Training did not start: {error}")
            return error.exit_code
        except KeyboardInterrupt:
            warn("Stopped.")
            return INTERRUPTED


def start(config: TrainConfig, options: argparse.Namespace) -> int:
    """Create or open the run folder, start the processes and supervise them."""
    check_start(config, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if config.num_nodes > 1 and config.node_rank > 0:
        return join_run(join_line_from_config(config, options.token or ask_for_token()), echo)
    if options.resume is not None:
        return resume(config, options)
    folder = RunFolder.create(config) if options.start_in is None else RunFolder(Path(options.start_in))
    echo(f"Run folder: {folder.path}")
    run = partial(
        start_run,
        config,
        folder,
        echo,
        require_multi_gpu=options.require_multi_gpu,
        token=options.token,
        hosts=hosts_of(options),
        joining=joining_of(options),
    )
    code = notifying(options.notify, folder, run)
    if config.run_name is None and options.start_in is None:
        remove_unstarted_run(folder)
    return code


def resume(config: TrainConfig, options: argparse.Namespace) -> int:
    """As `start`, in the folder of the run to resume; its config is restored if the new one is refused."""
    folder = folder_to_resume(config, options.resume) if options.start_in is None else RunFolder(Path(options.start_in))
    check_not_training(folder)

    def run() -> int:
        with supervisor_lock(folder):  # before the config changes: another start may be about to read it
            previous, copy = former_config(folder), read_copy(folder)
            save_config(config, folder.config_file)
            try:
                folder.resume_config_file.unlink(missing_ok=True)
                folder.remote_file.unlink(missing_ok=True)  # from now on it is a run of this computer
            except OSError as error:  # such as a folder of that name
                folder.config_file.write_bytes(previous)
                raise not_writable_error(folder.path, error) from error
            echo(f"Run folder: {folder.path}")
            code = start_run(
                config,
                folder,
                echo,
                extra_args=["--resume", options.resume],
                require_multi_gpu=options.require_multi_gpu,
                token=options.token,
                hosts=hosts_of(options),
                joining=joining_of(options),
            )
            if code == BAD_CONFIG:
                folder.config_file.write_bytes(previous)
                if copy is not None:
                    mark_copy(folder, copy)
        return code

    return notifying(options.notify, folder, run)  # once another start may follow


def dry_run(config: TrainConfig, options: argparse.Namespace) -> int:
    """Check what can be checked without decoding images, show data and plan, and start nothing."""
    from modules.config.own_builders import own_optimizer_note
    from modules.config.schedules import long_warmup, own_scheduler_note
    from modules.config.unused import unused_settings
    from modules.data.loading.count_steps import steps_per_epoch
    from modules.training.data.dry_run import data_lines
    from modules.training.loop.checks import check_startable
    from modules.training.memory.model_setup import check_available
    from modules.training.memory.report import batch_memory, memory_lines, memory_report

    check_start(config, require_multi_gpu=options.require_multi_gpu, token=options.token)
    if options.resume is not None:
        check_resume(config, options.resume)
    elif config.run_name is not None:
        check_run_name_free(Path(config.runs_dir), config.run_name)
    own = (own_optimizer_note(config), own_scheduler_note(config))
    has_data = options.remote_check != "no_data"
    notes = [*check_startable(config, has_data=has_data), *filter(None, own), *unused_settings(config)]
    plan = LaunchPlan.from_config(
        config,
        config_path=absolute_config_path(options.config or config_of_resumed_run(options)),
        extra_args=to_arguments({name: getattr(options, name) for name in REPEATED_FLAGS}),
        require_multi_gpu=options.require_multi_gpu,
    )
    table, problems = memory_report(config, plan.world_size or 1)
    memory = memory_lines(config, table, problems)
    data, warnings = list[str](), list[str]()
    if has_data:
        kind, limit = check_available(config), batch_memory(config, table)
        data, warnings = data_lines(config, kind, plan.world_size or 1, limit)
    if has_data and (config.warmup_steps or config.warmup_fraction):
        steps = total_steps(config, steps_per_epoch(config, plan.world_size or 1))
        warnings += filter(None, [long_warmup(config, steps)])
    lines = [f"Note: {note}" for note in notes] + [f"Warning: {warning}" for warning in warnings]
    if options.config is not None and len(made_of := composition(options.config)) > 1:
        lines.append(f"Composed of: {', '.join(map(str, made_of))}")
    start = preview(config, plan, hosts_of(options), has_command=options.remote_check is None)
    echo("\n".join([*lines, *data, *memory, *start]))
    return 0


def run_as_rank(rank_env: RankEnv, config: TrainConfig, options: argparse.Namespace) -> int:
    """One rank under torchrun or srun: rank 0 creates the run folder and shares its path."""
    quieten_torch(os.environ)
    use_own_slice(os.environ, rank_env)
    set_allocator(os.environ, [] if config.device == "cpu" else visible_gpus())
    with quick_imports():
        from modules.distributed import open_store
        from modules.training.loop.run_location import shared_run_folder
        from modules.training.worker import import_less, run_worker

    import_less(config)
    set_network_interfaces(os.environ, rank_env.master_addr)
    note = check_gpus_of_step(os.environ, config.distributed_backend)
    if note and rank_env.rank == 0:
        echo(f"Note: {note}.")
    for note in launch_notes(config, rank_env, os.environ):
        echo(note)
    if rank_env.rank == 0 and store_secret() is None:
        echo(NO_SECRET)
    store = open_store(rank_env, config.startup_timeout_s, echo)
    folder = shared_run_folder(config, rank_env, store, options.resume)
    tell = end_told(options.notify if rank_env.rank == 0 else "", folder)
    return run_worker(config, folder, rank_env, store, options.resume, supervised=False, on_end=tell)


def run_supervised(folder: RunFolder, options: argparse.Namespace) -> int:
    """A process started by the supervisor: one rank, the only process, or the one that spawns the ranks."""
    with quick_imports():
        from modules.training.worker import import_less, run_worker, spawn_workers, supervised_by_us

    config = resolve_config(options.config, options.set)
    if options.spawn is not None:
        return spawn_workers(config, folder, int(options.spawn), int(options.port), options.resume)
    import_less(config)
    rank_env = read_rank_env(os.environ, config.initial_port)
    if rank_env is not None:
        use_own_slice(os.environ, rank_env)
        set_network_interfaces(os.environ, rank_env.master_addr)
    return run_worker(config, folder, rank_env, resume=options.resume, supervised=supervised_by_us())


if __name__ == "__main__":
    code = main()
    if "modules.training.worker" in sys.modules:  # not in a supervisor
        from modules.training.worker import end_without_teardown

        end_without_teardown(code)
    sys.exit(code)
