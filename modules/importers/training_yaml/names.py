"""The names that training scripts use for the same setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from modules.importers.dotted import flatten
from modules.importers.rules import Table

# Section -> other names of it.
SECTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "parallel": ("distributed", "ddp", "parallelism"),
    "data": ("dataset", "data_loader", "dataloader", "train_loader", "train_dataloader"),
    "model": ("arch", "network"),
    "training": ("train", "trainer"),
    "optimizer": ("optim",),
    "scheduler": ("lr_scheduler",),
    "validation": ("val", "valid", "evaluation", "eval", "val_loader", "valid_loader", "val_dataloader"),
    "testing": ("test", "test_loader", "test_dataloader"),
    "early_stopping": ("early_stop", "earlystopping", "early_stopper"),
    "checkpoint": ("checkpoints", "checkpointing"),
    "logging": ("log", "logger"),
    "experiment": ("exp",),
}
_SECTION_OF: Final = {other: name for name, others in SECTIONS.items() for other in (name, *others)}
# Groups that say nothing, as in optimizer: {type: Adam, args: {lr: 1}} and data: {train: {loader: {batch_size: 2}}}.
_WRAPPERS: Final = frozenset({"args", "params", "kwargs", "init_args"})
_LOADERS: Final = frozenset({"loader", "dataloader", "data_loader"})
_CLASS: Final = frozenset({"class_path", "_target_"})  # how Lightning's CLI and Hydra name the class of a group
# Groups within a section, as Hydra's templates for Lightning have them -> the section that they are.
_INNER_SECTIONS: Final = {
    **{
        (outer, f"{name}{ending}"): section
        for outer in ("model", "training")
        for section in ("optimizer", "scheduler")
        for name in (section, *SECTIONS[section])
        for ending in ("", "_kwargs", "_args", "_params")
    },
    **{
        ("data", name): section
        for section in ("data", "validation", "testing")
        for name in SECTIONS[section]
        if name.endswith("loader")
    },
    **{("training", name): "early_stopping" for name in ("early_stopping", *SECTIONS["early_stopping"])},
    **{("training", name): "checkpoint" for name in ("checkpoint", *SECTIONS["checkpoint"])},
    ("callbacks", "early_stopping"): "early_stopping",
    ("callbacks", "model_checkpoint"): "checkpoint",
}
_CALLBACKS: Final = {"EarlyStopping": "early_stopping", "ModelCheckpoint": "checkpoint"}  # of Lightning -> section


def present_sections(data: Mapping[object, object]) -> set[str]:
    """The sections of these settings that are groups."""
    groups = (str(name) for name, value in data.items() if isinstance(value, Mapping))
    return {_SECTION_OF[name] for name in groups if name in _SECTION_OF}


def canonical(data: Mapping[str, object], table: Table) -> Iterator[tuple[str, str, object]]:
    """(the table's name, the name in the file, the value) of each setting, in the order of the file."""
    for written, value in _with_callbacks(flatten(data)):
        first, *others = (part for part in written.lower().split(".") if part not in _WRAPPERS)
        parts = [first, *(part for part in others if part not in _LOADERS)] if len(others) > 1 else [first, *others]
        if written.lower().rpartition(".")[2] in _WRAPPERS and not value:
            continue  # no arguments
        parts[0:1] = [_SECTION_OF.get(part, part) for part in parts[0:1]] if len(parts) > 1 else parts[0:1]
        if isinstance(value, _OfCallback):
            parts, value = [value.section, parts[-1]], value.value
        if (inner := _INNER_SECTIONS.get((parts[0], parts[1])) if len(parts) > 2 else None) is not None:
            parts[:2] = [inner]
        if parts[-1] in _CLASS and parts[:-1] in (["optimizer"], ["scheduler"]):
            parts[-1], value = "type", _class_name(value)
        if parts[0] == "early_stopping" and parts[-1] in _CLASS and _class_name(value) == "EarlyStopping":
            parts[-1], value = "callback", _class_name(value)
        name = ".".join(parts)
        yield table.renamed.get(name, name), written, value


class _OfCallback(NamedTuple):
    section: str
    value: object


def _with_callbacks(settings: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """The settings, with those of the callbacks in a list, such as Lightning's `trainer.callbacks`, one by one."""
    for written, value in settings.items():
        if written.rpartition(".")[2] != "callbacks" or not isinstance(value, list):
            yield written, value
            continue
        for number, callback in enumerate(value):
            settings_of = flatten({"": callback})
            path = settings_of.pop(".class_path", None)
            section = _CALLBACKS.get(_class_name(path))
            if section is None:
                yield f"{written}.{number}", [callback]  # in a list: as a whole
                continue
            if section == "early_stopping":
                yield f"{written}.{number}.class_path", _OfCallback(section, path)
            for name, inner in settings_of.items():
                yield f"{written}.{number}{name}", _OfCallback(section, inner)


def _class_name(path: object) -> str:
    """SGD of torch.optim.SGD."""
    return str(path).rpartition(".")[2]
