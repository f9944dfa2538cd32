"""`tandem COMMAND ...`: the programs of scripts/ under one name; `tandem` alone opens the window."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final

from tandem import __version__
from tandem._own_packages import import_own

# Group -> command -> the module whose `main` it is, and a line of help.
COMMANDS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "before a run": {
        "import": ("scripts.import_config", "convert the settings of another trainer to a config"),
        "annotate": ("scripts.annotate", "caption, tag and mask images with models"),
        "preflight": ("scripts.preflight", "check devices, network, disks and data"),
        "find-batch-size": ("scripts.find_batch_size", "find the largest batch size that fits on every GPU"),
        "benchmark": ("scripts.benchmark", "time the steps of a config on 1 to all devices"),
    },
    "training": {
        "train": ("scripts.train", "train on one GPU, on all GPUs of this machine, or on several machines"),
        "queue": ("scripts.run_queue", "train several configs, one after the other or on different GPUs"),
        "submit-slurm": ("scripts.submit_slurm", "write and submit a batch script for Slurm"),
        "submit-kubernetes": ("scripts.submit_kubernetes", "write and apply the manifests of a run on Kubernetes"),
        "remote": ("scripts.remote", "train on another machine over ssh, and follow the run here"),
        "hosts": ("scripts.hosts", "list, add and test the machines that runs start over ssh"),
    },
    "runs": {
        "monitor": ("scripts.monitor", "show the progress, step times and devices of a run"),
        "report": ("scripts.report", "write the report of a run as one HTML file, or its numbers"),
        "backup": ("scripts.backup", "list, check, restore, export and remove the backups of a run"),
        "cache": ("scripts.cache", "see, check and shrink the cache of encoded images"),
        "debug-package": ("scripts.debug_package", "make one zip of a run for a bug report"),
    },
    "trained models": {
        "sample": ("scripts.sample", "generate images"),
        "classify": ("scripts.classify", "classify images"),
        "convert": ("scripts.convert", "convert models, LoRA and embeddings to the formats of other tools"),
    },
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns an exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] in (["-h"], ["--help"]):
        print(help_text())
        return 0
    if given[:1] == ["--version"]:
        print(f"Tandem {__version__}")
        return 0
    if not given or given[0].startswith("-"):
        return _main_of("app.__main__", given, "tandem", is_program=arguments is None)
    name, *rest = given
    modules = {name: module for group in COMMANDS.values() for name, (module, _) in group.items()}
    if name not in modules:
        nearest = get_close_matches(name, modules)
        question = f"; did you mean {' or '.join(nearest)}?" if nearest else "."
        print(f"There is no command {name!r}{question} `tandem --help` lists all commands.", file=sys.stderr)
        return 2
    return _main_of(modules[name], rest, f"tandem {name}", is_program=arguments is None)


def _main_of(module: str, arguments: list[str], typed: str, *, is_program: bool) -> int:
    """The `main` of a program; as one that was started by itself, it takes its command line from sys.argv."""
    import_own(module.partition(".")[0])
    if is_program:
        sys.argv = [typed, *arguments]
    code: int = import_module(module).main(None if is_program else arguments)
    return code


def help_text() -> str:
    """All commands, a line for each."""
    groups = (
        [f"{title}:", *(f"  {name:19}{line}" for name, (_, line) in group.items()), ""]
        for title, group in COMMANDS.items()
    )
    return "\n".join(
        [
            "usage: tandem COMMAND [OPTION ...]",
            "       tandem [--config FILE] [--run FOLDER]",
            "       tandem --help | --version",
            "",
            "Trains image models on one GPU, on every GPU of the machine, or on several machines. Without a command it",
            "opens the window, with a config file or a run if one is given.",
            "",
            *(line for lines in groups for line in lines),
            "`tandem COMMAND --help` shows the options of a command.",
        ]
    )
