"""Write docs/importing.md from the tables in `modules/config/importing`; `--check` only compares."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be started by its path

from modules.config.explain import show
from modules.config.importing import TRAINERS, Trainer
from modules.config.importing.rules import ANY, Joint, Rule, Table, Without

PAGE = Path(__file__).resolve().parents[1] / "docs" / "importing.md"

HEAD = """# Settings from another trainer

Written by `python scripts/import_reference.py` from the tables in `modules/config/importing`; do not edit.

Tandem reads the settings files of other trainers and makes a config of its own of them. In the window: Open, "Import
from another trainer…", or "Open my settings" in the welcome. On the command line:

```
python scripts/import_config.py my_preset.json                    # only tells what would become of each setting
python scripts/import_config.py my_preset.json -o my_config.yaml  # writes the config, too
python scripts/train.py --config my_config.yaml --dry_run
```

The kind of file is found from its content, whatever its name ends in (JSON, TOML or YAML). `--set NAME=VALUE` changes
a setting of the result, `--overwrite` replaces a file that exists. The exit code is 0 where the config could be made,
2 where the file cannot be used.

Known are:

{kinds}

## What you are told

Every setting of theirs that is not their default stands in one of three lists:

- **Not carried over**: Tandem has no place for it, or its value cannot be used; with the reason and what to do.
- **Changed in meaning**: it became a setting of Tandem that does not mean exactly the same; with the difference.
- **Taken over**: it means the same. Where the file says nothing and the trainer does something else by default than
  Tandem, that default is taken over as well, and marked as theirs.

Values that Tandem refuses (a negative learning rate, a resolution of 3) are not carried over, and told with what would
be allowed. Passwords and tokens are never shown.

## What to know

- **Paths.** A relative path is looked for beside the file and in the four folders above it, because trainers read
  it from the folder they are started in; in the config it stands in full. One that is not found is kept and told.
- **Repeats** mean the same everywhere here: 1 shows each picture once in an epoch. (In SimpleTuner 0 does.)
- **Batch size** is per GPU in all of them, and in Tandem. None of them scales the learning rate with the number of
  GPUs unless told to, so `lr_scaling` is `none` in the result.
- **Epochs and steps.** Tandem ends at whichever comes first. Where a trainer counts steps only, `epochs` is set so high
  that `max_steps` ends the run.
- **Model families** that Tandem does not have keep their name in `family`, which is then marked as unknown: choose
  another family and base model, or train elsewhere.
"""


def render() -> str:
    """The whole page."""
    kinds = "\n".join(f"- **{trainer.name}**: {trainer.file}." for trainer in TRAINERS)
    return "\n".join([HEAD.format(kinds=kinds), *(_trainer(trainer) for trainer in TRAINERS)])


def _trainer(trainer: Trainer) -> str:
    parts = [f"## {trainer.name}\n"]
    for heading, table in trainer.tables.items():
        parts.append(f"### {heading[0].upper()}{heading[1:]}\n")
        parts.append(_carried(table))
        if table.without:
            parts.append("Not carried over:\n")
            parts.append(_without(table))
    return "\n".join(parts)


def _carried(table: Table) -> str:
    rows = "".join(_rule(rule) for rule in table.rules)
    return f"| theirs | their default | Tandem | difference |\n|---|---|---|---|\n{rows}"


def _rule(rule: Rule | Joint) -> str:
    keys = rule.keys if isinstance(rule, Joint) else {rule.theirs: rule.default}
    names = "<br>".join(f"`{name}`" for name in keys)
    defaults = "<br>".join(_default(value) for value in keys.values())
    ours = ", ".join(f"`{path}`" for path in rule.ours.split(", "))
    return f"| {names} | {defaults} | {ours} | {_cell(rule.why)} |\n"


def _without(table: Table) -> str:
    """One row for all settings with the same reason."""
    reasons: dict[str, list[Without]] = {}
    for row in table.without:
        if row.default is not ANY:
            reasons.setdefault(row.why, []).append(row)
    rows = "".join(
        f"| {', '.join(f'`{row.theirs}`' for row in found)} | {_cell(why)} |\n" for why, found in reasons.items()
    )
    return f"| theirs | why |\n|---|---|\n{rows}"


def _default(value: object) -> str:
    return "-" if value is None or value in ("", [], {}) else f"`{show(value)}`"


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def main() -> int:
    """Write the page, or with --check return 1 if it is not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is out of date")
    if parser.parse_args().check:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != render():
            print(f"{PAGE.name} is out of date; run python scripts/import_reference.py", file=sys.stderr)
            return 1
        return 0
    PAGE.write_text(render(), encoding="utf-8", newline="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
