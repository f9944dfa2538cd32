"""What a run that goes on from a backup may have changed: each setting's declaration says it (`resume`)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from torch import nn

from modules.checkpoint import TrainingState
from modules.config import Change, Part, ResumeError, TrainConfig, changes, dump
from modules.config.migrations import migrate
from modules.config.text_formats import Data
from modules.families.family import Family, family_class, read_options
from modules.training.plan import Beginning
from modules.training.trained_parts import names_of_trained, trained_parts

LOOKED_AT = 64  # numbers of each tensor


def check_unchanged(config: TrainConfig, state: TrainingState) -> str:
    """Raises ResumeError where the backup is of another run; else a sentence about what has changed, or nothing."""
    former = migrate(cast(Data, dict(state.config)), "the config of the backup")
    now = dump(config)
    kind = family_class(config.family)
    _check_family(config.family, str(former.get("family", config.family)))
    found = changes(TrainConfig, former, now)
    options = read_options(kind.Options, config.family_options).model_dump(mode="json")
    inside = changes(kind.Options, cast(Data, former.get("family_options", {})), options)
    found += [Change(f"family_options.{one.path}", one.resume, one.before, one.now) for one in inside]
    if fixed := [one for one in found if one.resume == "fixed"]:
        raise _refused(fixed)
    _check_parts(config, former, kind.parts)
    told = [str(one) for one in found if one.resume == "told"]
    if not state.position.base and former.get("base_model") != config.base_model:
        told += [str(one) for one in found if one.path == "base_model"]
    if not told:
        return ""
    return (
        f"Settings have changed since the backup: {', '.join(told)}. The run goes on with the new values, so not as "
        "it would have with the former ones."
    )


def check_base(family: Family, config: TrainConfig, former: Beginning) -> Beginning:
    """What this run goes on from, in place of `former`; `family` has just been loaded, and nothing was added to it.

    A base model may have moved, or come in another form. Raises ResumeError where weights that the backup does not
    hold are other ones.
    """
    marks = {name: mark(module) for name, module in _not_in_backups(family, config)}
    other = [
        name
        for name, former_mark in former.marks.items()
        if name in marks and marks[name] != former_mark and _format(marks[name]) == _format(former_mark)
    ]
    if not other:
        return Beginning(config.base_model, marks)
    names = f"its {' and '.join(other)} {'are' if len(other) > 1 else 'is'}"
    if config.base_model is None:
        raise ResumeError(
            f"resume: the model that training begins from has changed since the backup: {names} not what this run "
            "began with.",
            "Use the seed, the family and the family options of that run.",
        )
    raise ResumeError(
        f"resume: base_model is {config.base_model!r}, and {names} not what this run began with, which was "
        f"{former.base_model!r}.",
        "Give that model, wherever it is now, or begin a new run under another run_name.",
    )


@torch.no_grad()
def mark(module: nn.Module) -> str:
    """The format of a module's weights, and a few numbers of each in one word: other weights have another word.

    Reads 64 numbers of each tensor, so that it takes no time for large models either.
    """
    word, layout = hashlib.blake2b(digest_size=12), ""
    for name, weight in sorted(module.named_parameters()):
        layout = layout or str(weight.dtype).removeprefix("torch.")
        flat = weight.detach().reshape(-1)
        some = flat[:: max(1, flat.numel() // LOOKED_AT)][:LOOKED_AT].cpu().contiguous()
        word.update(f"{name} {list(weight.shape)}\0".encode())
        word.update(some.view(torch.uint8).numpy().tobytes())
    return f"{layout}:{word.hexdigest()}"


def _not_in_backups(family: Family, config: TrainConfig) -> Iterable[tuple[str, nn.Module]]:
    """Modules whose weights no backup holds, as training does not change them: encoders, and what is not trained."""
    yield from family.encoders.items()
    if not family.parts:
        if config.method != "fine_tune":
            yield "model", family.model
        return
    trained = trained_parts(family, config) if config.method == "fine_tune" else ()
    for name, part in family.model.named_children():
        if name not in trained:
            yield name, part


def _format(word: str) -> str:
    return word.partition(":")[0]


def _check_family(now: str, before: str) -> None:
    """A Python file may have moved."""
    moved = now.endswith(".py") and Path(now).name == Path(before).name
    if now != before and not moved:
        raise _refused([Change("family", "fixed", before, now)])


def _check_parts(config: TrainConfig, former: Mapping[str, object], parts: tuple[str, ...]) -> None:
    """The same parts are trained, however the list names them."""
    entries = cast("list[object]", former.get("parts", []))
    before = config.model_copy(update={"parts": tuple(map(Part.model_validate, entries))})
    trained = [names_of_trained(each, parts) for each in (before, config)]
    if trained[0] != trained[1]:
        was, is_ = (", ".join(names) for names in trained)
        raise ResumeError(
            f"resume: parts lets {is_} be trained, but the run of this backup trains {was}.",
            "Set parts back to go on, or begin a new run under another run_name.",
        )


def _refused(fixed: list[Change]) -> ResumeError:
    """One sentence for each setting that would make another run of it."""
    sentences = [
        f"{one.path} is {_quoted(one.now)}, but the run of this backup has {_quoted(one.before)}" for one in fixed
    ]
    return ResumeError(
        f"resume: {'; '.join(sentences)}.",
        f"Set {'it' if len(fixed) == 1 else 'them'} back to go on, or begin a new run under another run_name.",
    )


def _quoted(value: object) -> str:
    return repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
