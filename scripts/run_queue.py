"""Configs that wait for the GPUs: `python scripts/run_queue.py add CONFIG`, then `run`, one after the other."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_trust_code, allow_code, exit_code_of, prepare_program, program_parser, resolved_config

prepare_program()

from modules.config import ConfigError
from modules.config.file_access import set_file_access
from modules.files import printable
from modules.run import RunFolder
from modules.run.console import echo
from modules.run.demo_images import draw_missing_images
from modules.run.exit_codes import FINISHED
from modules.run.hosts.host_list import find_hosts, named_hosts
from modules.run.queue.entries import MOST_ENTRIES, Entry, parse_devices
from modules.run.queue.folder import RunQueue
from modules.run.queue.place_run import check_startable, progress_of
from modules.run.queue.runner import QueueRunner
from modules.run.remote.attendant import ADD
from modules.run.remote.parts import for_machines, machines_with
from modules.run.remote.parts import named as named_machines

EXAMPLES = """examples:
  three runs for the night:
    python scripts/run_queue.py add cats.yaml
    python scripts/run_queue.py add cats.yaml --set learning_rate=1e-4 --run_name cats-slow
    python scripts/run_queue.py add dogs.yaml
    python scripts/run_queue.py run
  two at the same time on a machine with several GPUs, each on the next free one:
    python scripts/run_queue.py add cats.yaml
    python scripts/run_queue.py add dogs.yaml
  one on the next two free GPUs, one on GPU 1 only:
    python scripts/run_queue.py add cats.yaml --multi_gpu --set world_size=2
    python scripts/run_queue.py add dogs.yaml --devices 1
  one on this machine and another one, which it starts over ssh:
    python scripts/run_queue.py add cats.yaml --hosts beta
  one on another machine, where `remote.py setup` has set up Tandem, while others run here:
    python scripts/run_queue.py add cats.yaml --on beta
  one on two such machines, none of which is this computer:
    python scripts/run_queue.py add cats.yaml --on alpha --with beta
  what has become of them; entry 3 next; cats-slow not at all:
    python scripts/run_queue.py list
    python scripts/run_queue.py move 3 first
    python scripts/run_queue.py remove cats-slow

exit codes: 0 done (of `run`: every run finished), 2 a mistake in the command, 3 a run failed or a file cannot be
written; of `run` also 130 or 143 stopped (the current run waits again, with a backup), 138 paused
"""
_LEAVE = "Leave one out"
_ANY = "any: those that are free, as many as its settings ask for"
PLACES = {"first": 0, "last": MOST_ENTRIES}
STEPS = {"up": -1, "down": 1}


def main(arguments: list[str] | None = None) -> int:
    """Do what was asked; returns an exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(partial(do, options), "a file")


def do(options: argparse.Namespace) -> int:
    """The action that was asked for."""
    set_file_access()
    return ACTIONS[options.action](options)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = program_parser(
        "Work off several configs, one after the other or on different GPUs at the same time.", EXAMPLES
    )
    actions = top.add_subparsers(dest="action", required=True, metavar="|".join(ACTIONS))

    def action(name: str, text: str) -> argparse.ArgumentParser:
        made = actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)
        made.add_argument(
            "--runs_dir", metavar="DIR", help="the folder of the runs, which has one queue (default: runs)"
        )
        return made

    add = action("add", "add a copy of a config; what changes in its file afterwards changes nothing in the queue")
    add.add_argument("config", metavar="CONFIG", help="a config file, or the name of a preset")
    add.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    add.add_argument("--run_name", metavar="NAME", help="name of the run; if it is taken, a number is added")
    add.add_argument("--devices", metavar="0,1", help=f"the GPUs that it needs, or {_ANY} (default: device_ids)")
    add.add_argument(
        "--hosts",
        metavar="NAME,NAME",
        help="the machines that its run starts over ssh, and that it waits for as for its GPUs (scripts/hosts.py list)",
    )
    add.add_argument(
        "--on",
        metavar="NAME",
        help="the machine of scripts/remote.py, set up there, that it waits for and trains on (default: this computer)",
    )
    add.add_argument(
        "--with",
        dest="others",
        default="",
        metavar="NAME,NAME",
        help="with --on: machines of scripts/remote.py that join the run there, which waits for them, too",
    )
    add.add_argument("--multi_gpu", action="store_true", help="train on all GPUs there are, or all of --devices")
    add.add_argument(
        "--send_token",
        action="store_true",
        help="with --on: give the run the HF_TOKEN of the shell that works off the queue, for gated models",
    )
    add.add_argument("--first", action="store_true", help="before all others that wait")
    add_trust_code(add)
    listing = action("list", "list the entries: what runs, what waits in its order, what has ended")
    listing.add_argument("--json", action="store_true", help="as JSON")
    move = action("move", "move an entry among those that wait")
    move.add_argument("entry", metavar="ENTRY", help="its number or its run's name")
    move.add_argument("place", metavar="PLACE", help="first, last, up, down, or a place from 1")
    devices = action("devices", "choose the GPUs of an entry that waits")
    devices.add_argument("entry", metavar="ENTRY", help="its number or its run's name")
    devices.add_argument("devices", metavar="DEVICES", help=f"the indices of its GPUs, such as 0,1, or {_ANY}")
    remove = action("remove", "remove entries; the folders of their runs stay")
    remove.add_argument("entry", nargs="+", metavar="ENTRY", help="its number or its run's name")
    remove.add_argument("--stop", action="store_true", help="one that runs, too: its run stops after a backup")
    action("clear", "forget all entries that have ended; the folders of their runs stay")
    retry = action(
        "retry", "let entries that have ended or were removed wait again; their runs continue from their last backups"
    )
    retry.add_argument("entry", nargs="+", metavar="ENTRY", help="its number or its run's name")
    run = action(
        "run", "work off the queue; Ctrl-C stops the current run after a backup, and the next `run` continues it"
    )
    run.add_argument("--keep_waiting", action="store_true", help="wait for new entries instead of ending")
    # internal: as the window does, wait for new entries until the process of this id has ended
    run.add_argument("--keep_waiting_for", type=int, metavar="PROCESS", help=argparse.SUPPRESS)
    run.add_argument("--stop_on_failure", action="store_true", help="start nothing more once a run has failed")
    action("pause", "let the process that works off the queue end after the current runs")
    action("stop", "let it stop the current runs after a backup, and end; they wait again")
    return top


def queue_of(options: argparse.Namespace) -> RunQueue:
    """The queue that the command is about."""
    return RunQueue(options.runs_dir or "runs")


def numbers_of(options: argparse.Namespace) -> list[int]:
    """The numbers of the entries that are named in the command."""
    found = queue_of(options).read()
    words = options.entry if isinstance(options.entry, list) else [options.entry]
    return [found.named(word).number for word in words]


def add_entry(options: argparse.Namespace) -> int:
    """`add`."""
    named = [] if options.run_name is None else [f"run_name={options.run_name}"]
    named += ["enable_multi_gpu=true"] if options.multi_gpu else []
    hosts = [host.name for host in named_hosts(options.hosts)]
    place = None if options.on is None else find_hosts([options.on], ADD)[0]
    if place is not None and hosts:
        raise ConfigError(
            "--on and --hosts are both given, and these join a run here", "Use --with for those that join it there"
        )
    joining = [name for each in options.others.split(",") if (name := each.strip())]
    if joining and place is None:
        raise ConfigError("--with is given without --on, the machine that they join", "Use --hosts for a run here")
    others = [] if place is None else machines_with(place, joining, ADD)
    if options.send_token and place is None:
        raise ConfigError("--send_token is given without --on, and a run here has the token anyway", _LEAVE)
    devices = None if options.devices is None else parse_devices(options.devices)
    named += ["device_ids=null"] if options.devices is not None and devices is None else []
    config = resolved_config(options.config, [*options.set, *named], len(hosts))
    if place is not None and others:
        config = for_machines(config, place, others)
        hosts = [each.name for each in others]
    allow_code(config, trust=options.trust_code)  # nobody can be asked at night
    draw_missing_images(options.config, config)
    queue = RunQueue(options.runs_dir or config.runs_dir)
    if place is not None and (note := check_startable(queue, config, place, others)):
        echo(f"Note: {note}")
    there = {} if place is None else {"place": place.name, "sends_token": options.send_token}
    entry = queue.add(config, devices, hosts=hosts, first=options.first, **there)
    if config.run_name not in (None, entry.name):
        echo(f"Note: {config.run_name} is taken, so this run is named {entry.name}.")
    if entry.resources.devices != entry.devices:
        echo(f"Note: its settings ask for fewer GPUs, so it takes {entry.devices_text}; --multi_gpu is for all.")
    number = next(number for number, each in enumerate(queue.read().waiting, 1) if each.number == entry.number)
    where = f" for {entry.place}" if entry.place else ""
    where += f" with {named_machines(entry.hosts)}" if where and entry.hosts else ""
    echo(f"Entry {entry.title} waits{where} at place {number} of {queue.runs_dir}.")
    if not queue.has_runner():
        runs = "" if options.runs_dir is None and config.runs_dir == "runs" else f" --runs_dir {queue.runs_dir}"
        echo(f"Work off the queue with: python scripts/run_queue.py run{runs}")
    return FINISHED


def show_list(options: argparse.Namespace) -> int:
    """`list`."""
    queue = queue_of(options)
    has_runner = queue.has_runner()
    found = queue.read().as_seen(has_runner=has_runner)
    if options.json:
        data = {"has_runner": has_runner, **found.model_dump(mode="json")}
        for entry in data["entries"]:
            entry["run_folder"] = str(queue.runs_dir / entry["name"])
            if entry["state"] == "running":
                entry["progress"] = progress_of(found.entry(entry["number"]), RunFolder(queue.runs_dir / entry["name"]))
        echo(json.dumps(data, indent=1))
        return FINISHED
    if not found.in_order():
        echo(f"The queue of {queue.runs_dir} is empty.")
        return FINISHED
    width, devices = (
        max(len(text) for text in texts)
        for texts in zip(*((entry.name, entry.devices_text) for entry in found.entries), strict=True)
    )
    for entry in found.in_order():
        progress = progress_of(entry, queue.run_folder(entry)) if entry.state == "running" else ""
        about = "  ".join(filter(None, (_about(entry), progress)))
        text = f"{entry.number:>4}  {entry.name:<{width}}  {entry.state:<8}  {entry.devices_text:<{devices}}  {about}"
        echo(printable(text.rstrip(), 2000))
    if found.waiting or any(entry.state == "running" for entry in found.entries):
        state = "A process works it off." if has_runner else "No process works it off; start one with `run`."
        echo(f"{len(found.waiting)} waiting. {state}")
    return FINISHED


def _about(entry: Entry) -> str:
    """When, and how it ended."""
    at = entry.ended or (entry.started if entry.state == "running" else entry.added)
    verb = {"waiting": "added", "running": "since"}.get(entry.state, "at")
    code = f" (exit code {entry.exit_code})" if entry.state == "failed" and entry.exit_code is not None else ""
    said = entry.waits or entry.reason
    reason = f"  {said.splitlines()[0]}{code}" if said else ""
    return f"{verb} {time.strftime('%d %b %H:%M', time.localtime(at or 0))}{reason}"


def move_entry(options: argparse.Namespace) -> int:
    """`move`."""
    queue, (number,) = queue_of(options), numbers_of(options)
    word = options.place
    if word in STEPS:
        queue.move_by(number, STEPS[word])
        return FINISHED
    if word in PLACES:
        place = PLACES[word]
    elif word.isascii() and word.isdecimal() and int(word[:9]) > 0:
        place = int(word[:9]) - 1
    else:
        raise ConfigError(f"PLACE is {printable(word)!r}; give {', '.join((*PLACES, *STEPS))}, or a place from 1")
    queue.move(number, place)
    return FINISHED


def set_devices(options: argparse.Namespace) -> int:
    """`devices`."""
    (number,) = numbers_of(options)
    queue_of(options).set_devices(number, parse_devices(options.devices, "DEVICES"))
    return FINISHED


def remove_entries(options: argparse.Namespace) -> int:
    """`remove`."""
    for number in numbers_of(options):
        removed = queue_of(options).remove(number, stop=options.stop)
        if removed.state == "waiting":
            echo(f"Entry {removed.title} waits no more; `retry {number}` takes it back until `clear`.")
    return FINISHED


def clear_ended(options: argparse.Namespace) -> int:
    """`clear`."""
    queue_of(options).clear_ended()
    return FINISHED


def retry_entries(options: argparse.Namespace) -> int:
    """`retry`."""
    for number in numbers_of(options):
        queue = queue_of(options)
        entry = queue.read().entry(number)
        queue.retry(number)
        echo(f"Entry {entry.title} waits again.")
        if entry.exit_code == FINISHED:
            echo("Note: its run has finished, so nothing is left to train. To train its config anew, add it again.")
    return FINISHED


def run_queue(options: argparse.Namespace) -> int:
    """`run`."""
    runner = QueueRunner(
        queue_of(options),
        echo,
        keep_waiting=options.keep_waiting,
        keep_waiting_for=options.keep_waiting_for,
        stop_on_failure=options.stop_on_failure,
    )
    return runner.run()


def pause(options: argparse.Namespace) -> int:
    """`pause` and `stop`."""
    queue = queue_of(options)
    if not queue.has_runner():
        echo(f"No process works off the queue of {queue.runs_dir}.")
        return FINISHED
    queue.want(options.action)
    return FINISHED


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "add": add_entry,
    "list": show_list,
    "move": move_entry,
    "devices": set_devices,
    "remove": remove_entries,
    "clear": clear_ended,
    "retry": retry_entries,
    "run": run_queue,
    "pause": pause,
    "stop": pause,
}


if __name__ == "__main__":
    sys.exit(main())
