"""Shared by the programs in scripts/: the check of their Python, `--version`, and generated pages of the docs."""

from __future__ import annotations

import argparse
import gc
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from itertools import takewhile
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from modules.config import TrainConfig

MAX_LORA_SCALE = 100.0
MOST_LORA_SCALES = 16


def prepare_program() -> None:
    """What each program does before its other imports: Ctrl-C and closed standard streams do no harm, and missing
    packages, or a system without /proc, end it with a hint."""
    sys.excepthook = _end_at_ctrl_c
    open_missing_streams()
    _require_packages()
    _require_proc()
    require_values()


def open_missing_streams() -> None:
    """Standard streams that were closed (`>&-`) lead to the null device; the next file would get their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


def _end_at_ctrl_c(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    with suppress(OSError, ValueError):
        print("Stopped.", file=sys.stderr, flush=True)
    os._exit(130)  # as modules.run.exit_codes.INTERRUPTED, which may not be imported yet


def _require_packages() -> None:
    if find_spec("pydantic") is not None and find_spec("torch") is not None:
        return
    python, setup = (".venv/bin/python", "./scripts/setup.sh")
    if sys.platform == "win32":
        python, setup = (".venv\\Scripts\\python", "scripts\\setup.bat")
    program = sys.argv[0]
    if program.startswith("tandem "):  # a command of `tandem`
        program = f"-m {program}"
    print(f"Run this with Tandem's Python: {python} {program} ..., after {setup}.", file=sys.stderr)
    sys.exit(2)


def _require_proc() -> None:
    """psutil, with which processes are watched and ended, can do nothing without it."""
    if sys.platform == "linux" and not os.path.exists("/proc/self/stat"):
        print(
            "/proc is missing, where the system shows its processes. Mount it (as root: mount -t proc proc /proc), or "
            "start the container with it.",
            file=sys.stderr,
        )
        sys.exit(2)


def require_values() -> None:
    """End with a sentence if an option's value is "--", of which argparse makes an empty list before Python 3.12.7."""
    options = takewhile("--".__ne__, sys.argv[1:])
    if wrong := next((each for each in options if re.fullmatch(r"-\w--|--?\w[\w-]*=--", each)), ""):
        print(f"{wrong.removesuffix('--').rstrip('=')} is '--', which is no value.", file=sys.stderr)
        sys.exit(2)


@contextmanager
def quick_imports() -> Iterator[None]:
    """Imports without garbage collection, which finds none in a million objects: a sixth less of a rank's start.

    Later collections leave these objects out, too.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.freeze()


class OptionGroups(NamedTuple):
    """Parts of the help that programs have in common."""

    run: argparse._ArgumentGroup
    devices: argparse._ArgumentGroup
    machines: argparse._ArgumentGroup
    output: argparse._ArgumentGroup


def option_groups(parser: argparse.ArgumentParser) -> OptionGroups:
    """Add them, in this order; one that gets no options is not shown."""
    return OptionGroups(*(parser.add_argument_group(title) for title in OptionGroups._fields))


def program_parser(description: str, examples: str) -> argparse.ArgumentParser:
    """A parser with `--version`, without abbreviations; its help ends with `examples`, their lines as they are."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, epilog=examples, formatter_class=raw, allow_abbrev=False)
    add_version(parser)
    return parser


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add `--version`."""
    from modules import __version__

    parser.add_argument("--version", action="version", version=f"Tandem {__version__}")


def add_lora_scale(parser: argparse.ArgumentParser, loras: str) -> None:
    """Add `--lora_scale`, the strength of each LoRA given as `loras`."""
    parser.add_argument(
        "--lora_scale",
        type=float,
        action="append",
        metavar="X",
        help=f"strength of the LoRA: 1 as trained, 0 none (default: 1); once, or as often as {loras}",
    )


def add_lora_scales(parser: argparse.ArgumentParser) -> None:
    """Add `--lora_scales`, several strengths of all LoRAs."""
    parser.add_argument(
        "--lora_scales",
        default="",
        metavar="X,Y,...",
        help="several strengths of all LoRAs, such as 0,0.5,1: a row of the same seeds with each, side by side",
    )


def lora_strengths(text: str, files: Sequence[str], scales: Sequence[float] | None) -> list[float]:
    """The strengths of `--lora_scales`; none if it is empty. Raises ConfigError."""
    from modules.config import ConfigError

    if not text:
        return []
    if not files:
        raise ConfigError(f"--lora_scales is {text!r}, but no --lora is given; give one, or omit it.")
    if scales:
        raise ConfigError(f"--lora_scales is {text!r}, but --lora_scale is given, too; omit one of them.")
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = []
    if not 1 <= len(found) <= MOST_LORA_SCALES or not all(abs(scale) <= MAX_LORA_SCALE for scale in found):
        raise ConfigError(
            f"--lora_scales is {text!r}; use 1 to {MOST_LORA_SCALES} numbers from -{MAX_LORA_SCALE:g} to "
            f"{MAX_LORA_SCALE:g}, such as 0,0.5,1."
        )
    return found


def lora_scales(files: Sequence[str], scales: Sequence[float] | None, option: str) -> list[float]:
    """The strength of each file: one for all of them, or one each. Raises ConfigError."""
    from modules.config import ConfigError

    given = list(scales or [1.0])
    for scale in given:
        if not abs(scale) <= MAX_LORA_SCALE:
            raise ConfigError(f"--lora_scale is {scale}; use a number from -{MAX_LORA_SCALE:g} to {MAX_LORA_SCALE:g}.")
    if len(given) not in (1, len(files)):
        raise ConfigError(
            f"--lora_scale is given {len(given)} times and {option} {len(files)} times.",
            "Give it once for all, or once for each in the same order.",
        )
    return given * len(files) if len(given) == 1 else given


def resolved_config(source: str | None, assignments: Sequence[str], hosts: int = 0) -> TrainConfig:
    """The config of this source for at least so many machines beside this one. Raises ConfigError, which says of
    another trainer's file how it is imported."""
    from modules.config import ConfigError
    from modules.importers import foreign_trainer
    from modules.run.hosts.host_list import resolve_with_hosts

    try:
        return resolve_with_hosts(source, assignments, hosts)
    except ConfigError:
        if not source or not (trainer := foreign_trainer(source)):
            raise
        raise ConfigError(
            f"{source} has the settings of {trainer}; it is no Tandem config",
            f"Import it: python scripts/import_config.py {shlex.quote(source)} -o my_config.yaml",
        ) from None


def add_trust_code(parser: argparse._ActionsContainer) -> None:
    """Add `--trust_code`."""
    parser.add_argument(
        "--trust_code",
        action="store_true",
        help="allow the Python files that the config names as its family, optimizer or scheduler, with what they "
        "import; remembered until one of them changes",
    )


def add_local_rank(parser: argparse.ArgumentParser) -> None:
    """What `python -m torch.distributed.launch` adds to every command: LOCAL_RANK, which it sets as well."""
    parser.add_argument("--local-rank", "--local_rank", type=int, help=argparse.SUPPRESS)


def add_allow(parser: argparse._ActionsContainer) -> None:
    """The option for what the config of another machine may name on this one."""
    parser.add_argument(
        "--allow",
        metavar="PATH",
        action="append",
        default=[],
        help="with --join: a folder or file on this machine that machine 0's config may name; once for each",
    )


def add_measured_hosts(parser: argparse._ActionsContainer) -> None:
    """Add `--hosts` of a program that measures."""
    parser.add_argument(
        "--hosts",
        metavar="NAME,NAME",
        help="also on these machines, started over ssh (scripts/hosts.py list); without it, on this machine alone",
    )


def allow_code(config: TrainConfig, *, trust: bool, may_ask: bool = True, trains: bool = True) -> None:
    """Ask once, in a terminal, whether the Python files that a config names may run: a family's, and, if it `trains`,
    those of its optimizer and scheduler. Raises ConfigError if they may not."""
    from modules.config import trusted_code

    ask = ask_about_code if may_ask and is_interactive() else None
    if trains:
        trusted_code.allow_code(config, trust=trust, ask=ask)
    else:
        trusted_code.allow_family(config.family, trust=trust, ask=ask)


def is_interactive() -> bool:
    """Whether a person can read a question and answer it."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def confirmed(question: str = "Remove them? [y/N] ") -> bool:
    """Whether somebody at a terminal says yes."""
    if not is_interactive():
        return False
    return _answer(question)


def ask_about_path(described: str) -> bool:
    """Ask once, in a terminal, whether a run of another machine may use a path on this one."""
    print(f"Machine 0's config names a path on this machine, {described}.\nThe run would read it.", file=sys.stderr)
    return _answer("May it? The answer yes is remembered. [y/N] ")


def ask_about_code(described: str) -> bool:
    """Ask once, in a terminal, whether Python files that a config names may run."""
    print(f"The config runs, {described}.\nIt may do anything that you can do on this computer.",
          file=sys.stderr)  # fmt: skip
    return _answer("Have you read it, and may it run? [y/N] ")


def _answer(question: str) -> bool:
    print(question, end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def exit_code_of(action: Callable[[], int], file: object) -> int:
    """What `action` returns; its errors are said in one sentence. `file` is named if the system names none."""
    from modules.config import TandemError
    from modules.files import printable
    from modules.run.console import warn
    from modules.run.exit_codes import FAILED, INTERRUPTED

    try:
        return action()
    except TandemError as error:
        warn(str(error))
        return error.exit_code
    except OSError as error:
        warn(f"{printable(error.filename or file)} cannot be read or written: {error.strerror or error}.")
        return FAILED
    except KeyboardInterrupt:
        warn("Stopped.")
        return INTERRUPTED


def write_page(name: str, render: Callable[[], str], description: str | None) -> int:
    """Write the page docs/NAME; with --check on the command line only return 1 if it is out of date."""
    from modules import ROOT

    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    page = ROOT / "docs" / name
    check = parser.parse_args().check
    text = render()
    if not check:
        page.write_text(text, encoding="utf-8", newline="\n")
    elif not page.exists() or page.read_text(encoding="utf-8") != text:
        print(f"{name} is out of date; run python {sys.argv[0]}", file=sys.stderr)
        return 1
    return 0
