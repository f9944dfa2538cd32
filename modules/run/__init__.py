"""A run from outside: its folder, events, commands, failures, launch and supervision; never imports torch."""

from modules.run.commands import Commands, SilentCommands, clear_commands, request_command
from modules.run.events import Event, EventLog, EventReader, SilentEventLog, read_events
from modules.run.exit_codes import (
    BAD_CONFIG,
    FAILED,
    FINISHED,
    INTERRUPTED,
    NO_DATA,
    TERMINATED,
    exit_code_of,
)
from modules.run.explanations import Explanation, explain_exception
from modules.run.failures import (
    Failure,
    forget_failures,
    give_room_back,
    read_failures,
    record_failure,
    reserve_room,
    root_cause,
)
from modules.run.launch_plan import LaunchPlan
from modules.run.rank_log import start_rank_log, stop_rank_log
from modules.run.run_folder import RunFolder

__all__ = [
    "BAD_CONFIG",
    "FAILED",
    "FINISHED",
    "INTERRUPTED",
    "NO_DATA",
    "TERMINATED",
    "Commands",
    "Event",
    "EventLog",
    "EventReader",
    "Explanation",
    "Failure",
    "LaunchPlan",
    "RunFolder",
    "SilentCommands",
    "SilentEventLog",
    "clear_commands",
    "exit_code_of",
    "explain_exception",
    "forget_failures",
    "give_room_back",
    "read_events",
    "read_failures",
    "record_failure",
    "request_command",
    "reserve_room",
    "root_cause",
    "start_rank_log",
    "stop_rank_log",
]
