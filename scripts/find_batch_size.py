"""Find the largest batch size that fits: `python scripts/find_batch_size.py --config FILE [--multi_gpu]`."""

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
from modules.config.io.batch_size_line import set_batch_size
from modules.run.batch_size.records import SearchRequest
from modules.run.batch_size.start import SearchEnded, find_batch_size
from modules.run.console import echo, warn
from modules.run.demo_images import draw_missing_images
from modules.run.exit_codes import BAD_CONFIG, FINISHED, INTERRUPTED
from modules.run.hosts.host_list import named_hosts


def main(arguments: list[str] | None = None) -> int:
    """Parse the command line and search; the exit codes are those of train.py."""
    options = parser().parse_args(arguments)
    try:
        set_file_access()
        if options.config is None:
            raise ConfigError("--config is missing; give the config whose batch size is searched.")
        flags = ["enable_multi_gpu=true"] if options.multi_gpu else []
        hosts = named_hosts(options.hosts)
        config = resolved_config(options.config, [*options.set, *flags], len(hosts))
        allow_code(config, trust=options.trust_code)
        draw_missing_images(options.config, config)
        request = SearchRequest(options.memory_target, options.memory_limit_gb)
        result = find_batch_size(config, request, echo, hosts)
        for line in ("", *result.lines(config)):
            echo(line)
        if options.json is not None:
            result.save(Path(options.json))
        if options.write:
            set_batch_size(Path(options.config), result.batch_size)
            echo(f"{options.config} now has batch_size {result.batch_size}.")
        else:
            echo(f"In the config:\nbatch_size: {result.batch_size}")
    except SearchEnded as end:
        return end.code
    except TandemError as error:
        warn(f"The batch size was not searched: {error}")
        return error.exit_code
    except OSError as error:
        warn(f"{error.filename} cannot be written: {error.strerror or error}.")
        return BAD_CONFIG
    except KeyboardInterrupt:
        return INTERRUPTED
    return FINISHED


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Find the largest batch_size whose training step fits into memory, on every GPU of a run. Trains "
        "nothing. docs/multi_gpu.md explains how it is measured.",
        allow_abbrev=False,
    )
    run, devices, machines, output = option_groups(top)
    run.add_argument("--config", metavar="FILE", help="a config file (JSON or YAML) or the name of a preset")
    run.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], help="override a setting")
    devices.add_argument("--multi_gpu", action="store_true", help="on all GPUs (or world_size processes)")
    devices.add_argument(
        "--memory_target",
        metavar="SHARE",
        type=float,
        default=0.9,
        help="share of the memory that may be taken, other programs' included (default: 0.9)",
    )
    devices.add_argument(
        "--memory_limit_gb",
        metavar="GIB",
        type=float,
        help="on CPUs: what each process may take (default: its share of what the machine or the container has free)",
    )
    output.add_argument(
        "--write", action="store_true", help="set batch_size in the config file, which keeps its comments"
    )
    output.add_argument("--json", metavar="FILE", help="also write the result as JSON")
    add_measured_hosts(machines)
    add_trust_code(run)
    add_version(top)
    return top


if __name__ == "__main__":
    sys.exit(main())
