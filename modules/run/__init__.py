"""Everything about a run except the training itself: folder, launch, supervision, joining. Never imports torch."""

from modules.run.exit_codes import BAD_CONFIG, FINISHED, exit_code_of
from modules.run.folder.commands import Commands, SilentCommands, request_command
from modules.run.folder.event_reader import EventReader, read_events
from modules.run.folder.events import Event, EventLog
from modules.run.folder.failures import (
    Failure,
    clear_failures,
    create_reserve,
    record_failure,
    release_reserve,
    root_cause,
)
from modules.run.folder.rank_log import start_rank_log, stop_rank_log
from modules.run.folder.run_folder import RunFolder
from modules.run.launch.placement import ProcessPlacement, choose_placement
from modules.run.launch.plan import LaunchPlan

__all__ = [
    "BAD_CONFIG",
    "FINISHED",
    "Commands",
    "Event",
    "EventLog",
    "EventReader",
    "Failure",
    "LaunchPlan",
    "ProcessPlacement",
    "RunFolder",
    "SilentCommands",
    "choose_placement",
    "clear_failures",
    "create_reserve",
    "exit_code_of",
    "read_events",
    "record_failure",
    "release_reserve",
    "request_command",
    "root_cause",
    "start_rank_log",
    "stop_rank_log",
]
