"""Write docs/settings.md from the declarations in modules/config; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be started by its path

from modules.config import SECTIONS, Option, TrainConfig, allowed, options

PAGE = Path(__file__).resolve().parents[1] / "docs" / "settings.md"

HEAD = """# Settings

Written by `python scripts/settings_reference.py` from the declarations in `modules/config`; do not edit.

Each name stands in a config file (JSON or YAML) and on the command line: `--set NAME=VALUE`, for example
`--set learning_rate=1e-4`, `--set optimizer.name=sgd` or `--set concepts.0.path=pictures`. Where a name has a
star, put the number of the list item, counted from 0. Relative paths are read from the folder you start
Tandem in. Settings marked (advanced) rarely need a change.

A run that goes on from a backup (`--resume`) may have other settings, as far as it stays the same run.
Where nothing is said, a setting may change freely. *Resume: told* stands at those with which the training
goes on otherwise from there, which the run says in a warning. *Resume: fixed* stands at those that would
make another run of it: the start is refused, with both values. *Resume: checked* stands at those that may
be written otherwise as long as they come to the same, such as a base model that has moved.
"""

RESUME = {"free": "", "told": " *Resume: told.*", "fixed": " *Resume: fixed.*", "checked": " *Resume: checked.*"}


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for section in SECTIONS:
        own = [option for option in options(TrainConfig) if option.section == section.section_title]
        parts.append(f"## {section.section_title}\n\n{' '.join((section.__doc__ or '').split())}\n")
        parts.extend(_table(heading, found) for heading, found in _groups(own).items())
    return "\n".join(parts)


def _groups(own: list[Option]) -> dict[str, list[Option]]:
    """Headings and their options: the section itself, then its optimizers and the items of its lists."""
    found: dict[str, list[Option]] = {}
    for option in own:
        item = option.path.partition(".*.")[0] if ".*." in option.path else ""
        heading = f"optimizer.name={option.variant}" if option.variant else f"each of `{item}`" if item else ""
        found.setdefault(heading, []).append(option)
    return dict(sorted(found.items(), key=lambda pair: bool(pair[0])))


def _table(heading: str, found: list[Option]) -> str:
    title = f"### {heading[0].upper()}{heading[1:]}\n\n" if heading.startswith("each") else ""
    title = title or (f"### `{heading}`\n\n" if heading else "")
    rows = "".join(_row(option) for option in found)
    return f"{title}| setting | what it does | value | default |\n|---|---|---|---|\n{rows}"


def _row(option: Option) -> str:
    condition = option.depends_on or ""
    if option.variant:  # the heading already says which optimizer
        condition = condition.partition(" & ")[2]
    help = f"{option.help} *Matters only with {_condition(condition)}.*" if condition else option.help
    help += RESUME[option.resume]
    name = f"`{option.path}`<br>{option.title}" + (" (advanced)" if option.advanced else "")
    value = allowed(option) + (f"; in {option.unit}" if option.unit else "")
    default = "required" if option.required else _default(option.default)
    return f"| {name} | {help} | {value} | {default} |\n"


def _condition(depends_on: str) -> str:
    terms = [f"`{term[1:]}` empty" if term[0] == "!" else f"`{term}`" for term in depends_on.split(" & ")]
    return " and ".join(terms).replace("|", "` or `")


def _default(value: object) -> str:
    if value is None or value == "":
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def main() -> int:
    """Write the page, or with --check return 1 if it is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    if parser.parse_args().check:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != render():
            print(f"{PAGE.name} is out of date; run python scripts/settings_reference.py", file=sys.stderr)
            return 1
        return 0
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(render(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
