"""Write docs/importing.md from the tables in `modules/importers`; `--check` only compares."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that the file can be started by its path

from modules.config.explain import format_value
from modules.importers import TRAINERS, Trainer
from modules.importers.rules import ANY, CombinedRule, Rule, Table
from scripts.common import write_page

PAGE = "importing.md"
MANY = 10  # settings of one group

HEAD = """# Importing settings from another trainer

Written by `python scripts/import_reference.py` from the tables in `modules/importers`; do not edit.

Tandem imports the settings files of other trainers. In the window: Open, "Import from another trainer…", or "Import
settings" on the welcome page. On the command line:

```
python scripts/import_config.py my_preset.json                    # only shows how each setting would be imported
python scripts/import_config.py my_preset.json -o my_config.yaml  # also writes the config
python scripts/train.py --config my_config.yaml --dry_run
```

The trainer is recognised from the file's content, regardless of its extension (JSON, TOML or YAML). `--set NAME=VALUE`
changes a setting of the result, `--overwrite` replaces an existing file. The exit code is 0 if the config was made,
2 if the file cannot be used.

Supported are:

{kinds}

## The report

First it says what is to be set before the config can start, as `--dry_run` would: most often a base model and images,
which a preset does not name. Nothing is written or downloaded for that.

Every setting that is not at the other trainer's default is in one of three lists:

- **Not imported**: Tandem does not support it, or its value is invalid; with the reason and what to do.
- **Imported with a different meaning**: it became a setting of Tandem that is not exactly equivalent; with the
  difference.
- **Imported**: it means the same. If the file does not contain a setting and the trainer's default differs from
  Tandem's, that default is imported as well, and marked as such.

Values that are invalid in Tandem (a negative learning rate, a resolution of 3) are not imported; the report says what
is allowed. Run names and sizes that a start would refuse are replaced by the nearest valid ones. Passwords and tokens
are never shown.

## Notes

- **Paths.** A relative path is resolved against the file's folder and the four folders above it, because trainers
  resolve it against the folder they are started in; the config contains the absolute path. One that does not exist is
  kept and reported.
- **Repeats** mean the same in all trainers: 1 shows each image once per epoch. (In SimpleTuner 0 does.)
- **Batch size** is per GPU in all of them, and in Tandem. None of them scales the learning rate with the number of
  GPUs by default, so `lr_scaling` is `none` in the result.
- **Epochs and steps.** Tandem stops at whichever comes first. If a trainer only counts steps, `epochs` is set high
  enough that `max_steps` ends the run.
- **What is no LoRA or fine-tune of the model**, such as a ControlNet, a slider, a distillation or pairs of images, and
  a distilled model that is trained with an adapter: `base_model` is left empty, and the report says why.
- **LoRA layers.** kohya's and OneTrainer's sets are `lora_targets` `kohya`, `kohya_conv` (LoCon, with `lora_conv_rank`)
  and `onetrainer`: see [adapters.md](adapters.md).
- **Training scripts for PyTorch** have no common format. Recognised are files with a section `training` (or `train`,
  `trainer`) and another one: `parallel`, `data`, `model`, `optimizer`, `scheduler`, `validation`, `testing`,
  `early_stopping`, `checkpoint`, `logging`, under these names or others that are common. A model's name becomes the
  network of Tandem's classifier, a `.py` file a family of your own, which does not run before you have allowed it.
  What is unknown or wrong is listed with its line. `examples/train_cli.py` has the flags that such scripts have.
- **Model families** that Tandem does not have keep their name in `family`, which is then marked as unknown: choose
  another family and base model.
"""


def render() -> str:
    """The whole page."""
    kinds = "\n".join(f"- **{trainer.name}**: {trainer.file}." for trainer in TRAINERS)
    return "\n".join([HEAD.format(kinds=kinds), *(_trainer(trainer) for trainer in TRAINERS)])


def _trainer(trainer: Trainer) -> str:
    parts = [f"## {trainer.name}\n"]
    for heading, table in trainer.tables.items():
        parts.append(f"### {heading[0].upper()}{heading[1:]}\n")
        parts.append(_rules(table))
        if table.unsupported:
            parts.append("Not imported:\n")
            parts.append(_unsupported(table))
    return "\n".join(parts)


def _rules(table: Table) -> str:
    others: dict[str, list[str]] = {}
    for other, name in table.renamed.items():
        others.setdefault(name, []).append(f"`{other}`")
    rows = "".join(_rule(rule, others) for rule in table.rules)
    return f"| setting | default | Tandem | difference |\n|---|---|---|---|\n{rows}"


def _rule(rule: Rule | CombinedRule, others: Mapping[str, Sequence[str]]) -> str:
    """One row; below each name, other names of the same setting."""
    keys = rule.keys if isinstance(rule, CombinedRule) else {rule.source: rule.default}
    names = "<br>".join(f"`{name}`{_also(others.get(name, ()))}" for name in keys)
    defaults = "<br>".join(_default(value) for value in keys.values())
    target = ", ".join(f"`{path}`" for path in rule.target.split(", "))
    return f"| {names} | {defaults} | {target} | {_cell(rule.why)} |\n"


def _also(names: Sequence[str]) -> str:
    return f" (also {', '.join(names)})" if names else ""


def _unsupported(table: Table) -> str:
    """One row per reason, for all settings that share it."""
    reasons: dict[str, list[str]] = {}
    for row in table.unsupported:
        if row.default is not ANY:
            reasons.setdefault(row.why, []).extend(row.names)
    rows = "".join(f"| {', '.join(_whole_groups(names))} | {_cell(why)} |\n" for why, names in reasons.items())
    return f"| setting | reason |\n|---|---|\n{rows}"


def _whole_groups(names: list[str]) -> list[str]:
    """The names, with one entry for a group such as `vae.` of which so many are listed that it must be all of it."""
    sizes = Counter(name.rpartition(".")[0] for name in names)
    found: dict[str, None] = {}
    for name in names:
        group = name.rpartition(".")[0]
        found[f"`{group}.*`" if group and sizes[group] >= MANY else f"`{name}`"] = None
    return list(found)


def _default(value: object) -> str:
    """`ANY` has none: the setting is reported whatever its value."""
    if value is ANY:
        return "-"
    return "-" if value is None or value in ("", [], {}) else f"`{format_value(value)}`"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(write_page(PAGE, render, __doc__))
