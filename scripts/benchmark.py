"""Time the steps of a config on one and on more devices: `python scripts/benchmark.py --config FILE [--multi_gpu]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import (
    add_measured_hosts,
    add_trust_code,
    add_version,
    allow_code,
    option_groups,
    prepare_program,
    resolved_config,
)

prepare_program()

from modules.config import ConfigError, TandemError
from modules.config.file_access import set_file_access
from modules.files import FileFault, printable
from modules.run.benchmark.records import MOST_STEPS, BenchmarkRequest, BenchmarkResult
from modules.run.benchmark.start import BenchmarkStopped, cases_of, run_benchmark
from modules.run.benchmark.tables import compared_lines, differences, result_lines
from modules.run.console import echo, warn
from modules.run.demo_images import draw_missing_images
from modules.run.exit_codes import BAD_CONFIG, FAILED, FINISHED, INTERRUPTED
from modules.run.hosts.host_list import named_hosts

EXAMPLES = """examples:
  30 steps of a config on one device, then on 2, 4, ... and all GPUs, as a table, a plot and JSON:
    python scripts/benchmark.py --config my.yaml --multi_gpu --json before.json --plot before.png
  other batch sizes on one device:
    python scripts/benchmark.py --config my.yaml --ranks 1 --batch_sizes 1 2 4 8
  also on all GPUs of this machine and of another one, which is started over ssh:
    python scripts/benchmark.py --config my.yaml --multi_gpu --hosts beta
  what a change has brought:
    python scripts/benchmark.py --compare before.json after.json

exit codes: 0 everything was measured, 2 a mistake in the command, config or files, 3 a case failed, 130 stopped
"""


def main(arguments: list[str] | None = None) -> int:
    """Measure or compare; returns an exit code."""
    options = parser().parse_args(arguments)
    try:
        if options.compare is not None:
            return compare(*(Path(file) for file in options.compare))
        return measure(options)
    except BenchmarkStopped as error:
        warn(f"{error}.")
        return INTERRUPTED
    except TandemError as error:
        warn(f"Nothing was {'measured' if options.compare is None else 'compared'}: {error}")
        return error.exit_code
    except OSError as error:
        warn(f"{printable(error.filename)} cannot be read or written: {error.strerror or error}.")
        return BAD_CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED


def measure(options: argparse.Namespace) -> int:
    """Run the cases, and show and write what was measured."""
    set_file_access()
    if options.config is None:
        raise ConfigError("--config is missing; give the config whose steps are timed.")
    for option in ("json", "plot"):  # before minutes of work
        file = getattr(options, option)
        if file is not None and not Path(file).resolve().parent.is_dir():
            raise ConfigError(f"--{option} {file}: its folder does not exist")
    flags = ["enable_multi_gpu=true"] if options.multi_gpu else []
    hosts = named_hosts(options.hosts)
    config = resolved_config(options.config, [*options.set, *flags], len(hosts))
    allow_code(config, trust=options.trust_code)
    draw_missing_images(options.config, config)
    request = BenchmarkRequest(options.steps, options.warm_up)
    cases = cases_of(config, options.ranks, options.batch_sizes)

    def keep(measured: BenchmarkResult) -> None:
        if options.json is not None:
            measured.save(Path(options.json))

    result = run_benchmark(config, str(options.name or options.config), cases, request, echo, keep, hosts)
    echo("")
    for line in result_lines(result):
        echo(line)
    failed = [case for case in result.cases if case.measured is None]
    if options.plot is not None and len(failed) < len(result.cases):
        from modules.run.benchmark.plot import save_plot

        save_plot(result, Path(options.plot), dark=options.dark)
    return FAILED if failed else FINISHED


def compare(before: Path, after: Path) -> int:
    """Show two results of this program side by side."""
    results = [_loaded(file) for file in (before, after)]
    for line in compared_lines(*results):
        echo(line)
    if others := differences(*results):
        echo("\nNot only the speed differs:")
        for line in others:
            echo(f"  {line}")
    return FINISHED


def _loaded(file: Path) -> BenchmarkResult:
    try:
        return BenchmarkResult.load(file)
    except FileFault as fault:
        raise ConfigError(f"{printable(file)} {fault}", "Give files that --json has written") from None


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Time the optimizer steps of your config: throughput, what a step consists of, memory, scaling "
        "over devices and batch sizes. It uses the config's cache and saves nothing else.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    run, devices, machines, output = option_groups(top)
    run.add_argument("--config", metavar="FILE", help="a config file (JSON or YAML) or the name of a preset")
    run.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    devices.add_argument("--multi_gpu", action="store_true", help="up to all GPUs (or world_size processes)")
    run.add_argument("--steps", type=_count, default=30, metavar="N", help="steps that are measured (default: 30)")
    run.add_argument("--warm_up", type=_count, default=10, metavar="N", help="steps before them (default: 10)")
    devices.add_argument(
        "--ranks", type=_count, nargs="+", default=[], metavar="N", help="process counts (default: 1, 2, 4, ... all)"
    )
    run.add_argument(
        "--batch_sizes", type=_count, nargs="+", default=[], metavar="N", help="also these, on the fewest processes"
    )
    output.add_argument("--json", metavar="FILE", help="also write the result as JSON, for --compare")
    output.add_argument("--plot", metavar="FILE", help="also draw it as a PNG")
    output.add_argument("--dark", action="store_true", help="draw the plot on a dark background")
    output.add_argument("--name", help="what the result calls the config (default: its file)")
    run.add_argument("--compare", nargs=2, metavar=("BEFORE", "AFTER"), help="two JSON files instead of measuring")
    add_measured_hosts(machines)
    add_trust_code(run)
    add_version(top)
    return top


def _count(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_STEPS:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 to {MOST_STEPS:,}")
    return number


if __name__ == "__main__":
    sys.exit(main())
