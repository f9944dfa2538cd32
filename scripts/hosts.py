"""Machines that runs start over ssh: `python scripts/hosts.py add NAME USER@HOST FOLDER`, then `test`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import confirmed, exit_code_of, is_interactive, prepare_program, program_parser

prepare_program()

from modules.config import ConfigError
from modules.files import printable
from modules.run.console import echo
from modules.run.exit_codes import FAILED, FINISHED
from modules.run.hosts.check import check_host
from modules.run.hosts.description import describe_this_machine, description_line
from modules.run.hosts.host import DEFAULT_PYTHON, Host
from modules.run.hosts.host_list import add_host, find_hosts, hosts_file, read_hosts, remove_host
from modules.run.remote.link import is_for_runs
from modules.run.remote.machine import known_there

EXAMPLES = """examples:
  a second machine, tested, and a run on both:
    python scripts/hosts.py add beta me@10.0.0.2 ~/tandem
    python scripts/hosts.py test beta
    python scripts/train.py --config cats.yaml --multi_gpu --hosts beta
  a name of ~/.ssh/config, another port, images in another place:
    python scripts/hosts.py add gamma gpu-box /opt/tandem --port 2222 --set concepts.0.path=/data/cats

ssh must reach the machine without a question: its host key is known (connect once by hand), and your key is accepted
(ssh-copy-id USER@HOST). Docs: docs/multi_node.md.

exit codes: 0 done (of `test`: every machine can train), 2 a mistake in the command, 3 a machine cannot take part
"""
_AT_ONCE = 8


def main(arguments: list[str] | None = None) -> int:
    """Do what was asked; returns an exit code."""
    options = parser().parse_args(arguments)
    return exit_code_of(partial(ACTIONS[options.action], options), "a file")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = program_parser("Machines that runs start over ssh, for scripts/train.py --hosts and the window.", EXAMPLES)
    actions = top.add_subparsers(dest="action", required=True, metavar="add|list|test|remove")

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return actions.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.", allow_abbrev=False)

    add = action("add", "add a machine, or replace the one of this name")
    add.add_argument("name", metavar="NAME", help="its name in Tandem")
    add.add_argument("target", metavar="USER@HOST", help="what ssh connects to, or a name of ~/.ssh/config")
    add.add_argument("folder", metavar="FOLDER", help="Tandem's folder there, such as ~/tandem")
    add.add_argument("--port", type=int, metavar="N", help="of its sshd (default: as in ~/.ssh/config, or 22)")
    add.add_argument("--python", default="", metavar="PATH", help=f"Python there (default: {DEFAULT_PYTHON})")
    add.add_argument("--key", default="", metavar="FILE", help="private key on this computer (default: as ssh chooses)")
    add.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a setting of that machine in each run, e.g. cache_dir=/scratch/cache",
    )
    add.add_argument(
        "--allow_differences",
        action="store_true",
        help="train even if Tandem's code or the versions of packages there differ from this machine's",
    )
    listing = action("list", "list the machines")
    listing.add_argument("--json", action="store_true", help="as JSON")
    test = action("test", "test machines: reachable, the same versions, their GPUs")
    test.add_argument("names", nargs="*", metavar="NAME", help="(default: all)")
    remove = action("remove", "take machines off the list; nothing changes on them")
    remove.add_argument("names", nargs="+", metavar="NAME")
    remove.add_argument("--yes", action="store_true", help="do not ask, whatever runs there")
    actions.add_parser("describe")  # internal: what `test` runs there
    return top


def add(options: argparse.Namespace) -> int:
    """`add`."""
    before = next((host for host in read_hosts() if host.name == options.name), None)
    without_option = {"price", "slurm", "stop_after", "then", "idle_minutes"}
    kept = before.model_dump(include=without_option) if before else {}
    host = Host.make(
        options.name,
        options.target,
        _with_tilde(options.folder),
        port=options.port,
        python=options.python,
        key=options.key,
        settings=options.set,
        allow_differences=options.allow_differences,
        **kept,
    )
    verb = "Replaced" if add_host(host) else "Added"
    echo(f"{verb} {host} in {hosts_file()}. Test it with: python scripts/hosts.py test {host.name}")
    return FINISHED


def _with_tilde(folder: str) -> str:
    """The folder below ~ if this shell has put this user's home in place of it: it may be another one there."""
    home = str(Path.home())
    return f"~{folder.removeprefix(home)}" if folder == home or folder.startswith(f"{home}/") else folder


def show_list(options: argparse.Namespace) -> int:
    """`list`."""
    hosts = read_hosts()
    if options.json:
        echo(json.dumps([host.model_dump() for host in hosts], indent=1))
        return FINISHED
    if not hosts:
        echo("The list is empty. Add a machine with: python scripts/hosts.py add NAME USER@HOST FOLDER")
    widths = [max((len(getattr(host, field)) for host in hosts), default=0) for field in ("name", "target")]
    for host in hosts:
        more = [f"port {host.port}"] if host.port is not None else []
        more += [f"Python {host.python}"] if host.python else []
        more += [f"key {host.key}"] if host.key else []
        more += ["differences allowed"] if host.allow_differences else []
        more += [f"Slurm cluster ({' '.join(host.slurm)})"] if host.slurm else []
        more += [f"{host.price:g} an hour"] if host.price else []
        rest = "  ".join([host.folder, *more, *host.settings])
        echo(printable(f"{host.name:<{widths[0]}}  {host.target:<{widths[1]}}  {rest}", 5000))
    return FINISHED


def test(options: argparse.Namespace) -> int:
    """`test`."""
    hosts = find_hosts(options.names) if options.names else read_hosts()
    if not hosts:
        return show_list(argparse.Namespace(json=False))
    with ThreadPoolExecutor(min(len(hosts), _AT_ONCE)) as pool:
        checks = list(pool.map(check_host, hosts))
    for check in checks:
        echo(f"{check.host.name} cannot take part: {check}" if check.fault else f"{check.host.name} is ready. {check}")
    return FAILED if any(check.fault for check in checks) else FINISHED


def remove(options: argparse.Namespace) -> int:
    """`remove`."""
    for host in find_hosts(options.names):
        known = "" if options.yes else known_there(host, echo)
        if known and not confirmed(f"{known}\nTake {host} off the list? Nothing changes there. [y/N] "):
            if not is_interactive():
                remove_all = f"Remove what is there: python scripts/remote.py clean {host.name} --all; or give --yes"
                raise ConfigError(
                    f"{host} is still in the list. {known}", remove_all if is_for_runs(host) else "Give --yes"
                )
            continue
        remove_host(host.name)
    return FINISHED


def describe(_options: argparse.Namespace) -> int:
    """What another machine's `test` runs here."""
    echo(description_line(describe_this_machine()))
    return FINISHED


ACTIONS: Mapping[str, Callable[[argparse.Namespace], int]] = {
    "add": add,
    "list": show_list,
    "test": test,
    "remove": remove,
    "describe": describe,
}


if __name__ == "__main__":
    sys.exit(main())
