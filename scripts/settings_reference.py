"""Write docs/settings.md from the declarations of modules/config and of the families; `--check` only compares."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be started by its path

from modules.config import SECTIONS, Option, TrainConfig, allowed, options
from modules.facts import family_names
from scripts.common import write_page

PAGE = "settings.md"

HEAD = """# Settings

Written by `python scripts/settings_reference.py` from the declarations in `modules/config` and `modules/families`; do
not edit.

Use the names in a config file (JSON or YAML) and on the command line: `--set NAME=VALUE`, for example
`--set learning_rate=1e-4`, `--set optimizer.name=sgd` or `--set concepts.0.path=images`. If a name has a
star, replace it with the number of the list item, counted from 0. Relative paths are resolved from the folder in
which you start Tandem. Settings marked (advanced) rarely need a change. The options that only some model families
have are at the end, under [Family options](#family-options).

A line that a file does not have means the default. `version` says which defaults and meanings a file was written
for: Tandem writes it, and brings an older file to the present version. A file without it has today's meaning.
Version 1 was written by Tandem 0.1.0 and also later, when two defaults had changed. If such a file does not give
`normalize_masked_area_loss` or Adafactor's `optimizer.scale_parameter`, a warning says which value is used.

A run that resumes from a backup (`--resume`) may use other settings, as long as it remains the same run.
Settings without a note can be changed freely. *Resume: warns* marks those that change training from there
on; the run logs a warning. *Resume: fixed* marks those that would make it another run: the start is refused,
with both values. *Resume: checked* marks those whose new value must be equivalent, such as a base model that has
moved.
"""

FAMILY_HEAD = """## Family options

What only some model families have. In a config they stand under `family_options`, on the command line
`--set family_options.NAME=VALUE`, for example `--set family_options.loss_weighting=min_snr`.
"""

RESUME = {"free": "", "warn": " *Resume: warns.*", "fixed": " *Resume: fixed.*", "checked": " *Resume: checked.*"}


def render() -> str:
    """The whole page."""
    parts = [HEAD]
    for section in SECTIONS:
        found = [option for option in options(TrainConfig) if option.section == section.section_title]
        parts.append(f"## {section.section_title}\n\n{' '.join((section.__doc__ or '').split())}\n")
        parts.extend(_table(heading, inside) for heading, inside in _groups(found).items())
    parts.append(FAMILY_HEAD)
    parts.extend(_table("`, `".join(families), found) for families, found in _family_options())
    return "\n".join(parts)


def _family_options() -> list[tuple[tuple[str, ...], list[Option]]]:
    """The options of the built-in families with the families that declare them alike, those of most families first."""
    from modules.families._by_name import family_class  # torch takes seconds to import, which --help can do without

    families: dict[str, list[str]] = {}
    declared: dict[str, Option] = {}
    for name in family_names():
        for option in options(family_class(name).Options):
            declaration = repr(option)
            declared[declaration] = option
            families.setdefault(declaration, []).append(name)
    found: dict[tuple[str, ...], list[Option]] = {}
    for declaration, names in families.items():
        found.setdefault(tuple(names), []).append(declared[declaration])
    return sorted(found.items(), key=lambda pair: -len(pair[0]))


def _groups(section: list[Option]) -> dict[str, list[Option]]:
    """Options by heading: the section itself first, then its optimizers and the items of its lists."""
    found: dict[str, list[Option]] = {}
    for option in section:
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
    help = f"{option.help} *Only with {_condition(condition)}.*" if condition else option.help
    help = help.replace("|", "\\|") + RESUME[option.resume]
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


if __name__ == "__main__":
    sys.exit(write_page(PAGE, render, __doc__))
