"""Saving what was trained: the model folder, and the single file that other tools open."""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Final

import numpy as np
from safetensors import SafetensorError

from modules.checkpoint import Position, save_model
from modules.checkpoint.formats import (
    BucketCount,
    ImageFolder,
    RunMetadata,
    convert_folder_dtype,
    file_metadata,
    write_single_file,
)
from modules.config import Concept, ConfigError, TrainConfig, TrainingError
from modules.data.captions import tags_of
from modules.data.index.index import Index
from modules.diffusion.dtypes import DTYPES
from modules.families._family import Family
from modules.files import write_fault
from modules.run import RunFolder
from modules.training.actions.action import Action, ActionContext, inference_model
from modules.training.methods.lora import lora_size
from modules.training.methods.method import export_of
from modules.training.state.components import Components

_OS_ERROR: Final = re.compile(r"\(os error (\d{1,4})\)")
HOME_FOLDER: Final = "tandem-rescued"  # below the home folder
SPARE_BYTES: Final = 1 << 30  # stay free on a disk that the user did not choose for this
_OF_THE_DISK: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM, errno.ENOENT, errno.ESTALE}
)


@dataclass(frozen=True)
class ModelExport:
    """The model as it is now: `export` writes it into a folder."""

    export: Callable[[Path], None]
    run: RunMetadata


def export_model(context: ActionContext) -> Generator[ModelExport, None, None]:
    """The averaged weights, if EMA is on, stay in the model until the export is written; shards are gathered before."""
    parts, config = context.components, context.components.config
    with inference_model(parts):
        data = parts.data
        run = run_metadata(
            parts.family,
            config,
            context.position,
            parts.folder.name,
            parts.total_steps,
            math.ceil(data.order.progress(parts.total_samples).epochs),
            data.index,
            data.concepts,
            parts.started_at,
        )
        metadata = file_metadata(config, run, "diffusers")
        yield ModelExport(export_of(parts.family, parts.weights, config, metadata), run)


def _write(context: ActionContext, model: ModelExport) -> None:
    parts, step = context.components, context.position.step

    def save(folder: RunFolder) -> list[Path]:
        return write_model(model, parts.config, folder.model_dir, folder.model_file)

    try:
        written = save(parts.folder)
    except OSError as error:
        if not context.training_continues:  # the finished model, of which there is no later one
            save_elsewhere(error, parts.config, parts.folder, _largest_size(parts), save)
        raise
    context.report.note(f"Step {step}: the model is saved in {' and '.join(map(str, written))}.")


def write_model(model: ModelExport, config: TrainConfig, folder: Path, file: Path) -> list[Path]:
    """Write the model into `folder` and, with `save_single_file`, as `file`. Returns where it is. Raises OSError."""
    dtype = DTYPES[config.save_dtype]

    def export(target: Path) -> None:
        model.export(target)
        convert_folder_dtype(target, dtype)

    written = [folder]
    try:
        save_model(export, folder, config, model.run.step, file_metadata(config, model.run, "diffusers"))
        if config.save_single_file and config.method == "fine_tune":
            written.append(file)
            write_single_file(folder, file, dtype, file_metadata(config, model.run, "original"))
    except ConfigError as error:  # numbers that save_dtype cannot hold: as any file that cannot be written
        raise OSError(errno.ERANGE, f"save_dtype is {config.save_dtype!r}: {error}", str(written[-1])) from error
    except SafetensorError as error:  # of its own save_file, with the system's number in its text
        if (number := _OS_ERROR.search(str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(written[-1])) from error
    return written


def _largest_size(parts: Components) -> int:
    """Bytes that a saved model can have, with a copy while it is converted or in a second layout."""
    count = parts.weights.num_trainable
    if parts.config.method == "fine_tune":
        modules = (parts.weights.model, *parts.family.encoders.values())
        count = sum(weight.numel() for module in modules for weight in module.state_dict().values())
    return 2 * count * max(4, DTYPES[parts.config.save_dtype].itemsize)


def run_metadata(
    family: Family,
    config: TrainConfig,
    position: Position,
    run_name: str,
    steps: int,
    epochs: int,
    index: Index | None = None,
    concepts: Sequence[Concept] = (),
    started_at: float = 0.0,
) -> RunMetadata:
    """What the files say of a run of `steps` and so many `epochs`, begun or whole (as train_network.py of kohya's
    sd-scripts counts ss_num_epochs from max_train_steps), at this position; without its `index`, whose columns name
    `concepts`, nothing of its images. Tags are counted only if metadata_dataset is on."""
    return RunMetadata(
        run_name=run_name,
        modelspec=family.modelspec(),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        step=position.step,
        epoch=position.epoch,
        total_steps=steps,
        total_epochs=epochs,
        world_size=position.world_size,
        images=0 if index is None else len(index),
        folders=[] if index is None else _folders(index, concepts, with_tags=config.metadata_dataset),
        started_at=started_at,
        buckets=[] if index is None else _buckets(index, concepts),
        aspect_error=0.0 if index is None else _aspect_error(index),
        lora=lora_size(family) if config.method == "lora" else None,
        best=_best(config, position),
    )


def _best(config: TrainConfig, position: Position) -> dict[str, str]:
    """The metric that makes these weights the best so far; empty if they are others."""
    if position.best_validation is None or position.best_step != position.step:
        return {}
    return {"metric": config.early_stopping_metric, "value": repr(position.best_validation)}


def _buckets(index: Index, concepts: Sequence[Concept]) -> list[BucketCount]:
    """How many training images each bucket has, with the repeats of their concepts."""
    counts = defaultdict[int, float](float)
    for concept, bucket in zip(
        *(column[~index.validation].tolist() for column in (index.concept, index.bucket)), strict=True
    ):
        counts[bucket] += concepts[concept].repeats
    return [
        BucketCount(index.buckets[bucket].width, index.buckets[bucket].height, round(count))
        for bucket, count in sorted(counts.items())
    ]


def _aspect_error(index: Index) -> float:
    """The mean difference of width / height between training images and their buckets."""
    used = ~index.validation
    if not used.any():
        return 0.0
    aspects = np.array([bucket.width / bucket.height for bucket in index.buckets])[index.bucket[used]]
    return float(np.abs(aspects - index.width[used] / index.height[used]).mean())


def _folders(index: Index, concepts: Sequence[Concept], *, with_tags: bool) -> list[ImageFolder]:
    counts = Counter(int(concept) for concept in index.concept)
    tags: dict[int, Counter[str]] = {number: Counter() for number in range(len(concepts))}
    for row, number in enumerate(index.concept if with_tags else ()):
        delimiter = concepts[int(number)].tag_delimiter
        for caption in index.captions(row):
            tags[int(number)].update(tags_of(caption, delimiter))
    return [
        ImageFolder(
            name=PurePath(root).name,
            images=counts[number],
            repeats=concepts[number].repeats,
            prior=concepts[number].prior,
            tags=dict(tags[number].most_common()),
        )
        for number, root in enumerate(index.header.roots)
        if root
    ]


SAVE = Action(
    "save",
    every=None,
    can_be_requested=True,
    compute=export_model,
    write=_write,
    phase="saving",
)


def save_elsewhere(
    error: OSError, config: TrainConfig, folder: RunFolder, size: int, save: Callable[[RunFolder], list[Path]]
) -> None:
    """After `error` in saving the finished model of about `size` bytes, have `save` write it where there is room.

    Raises TrainingError, which says where the model is, or returns if it is nowhere.
    """
    if error.errno not in _OF_THE_DISK:
        return
    for place in _places(config, folder.name, size):
        with suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
            written = " and ".join(map(str, save(replace(folder, path=place))))
            raise TrainingError(
                f"The model could not be saved in {folder.path}: {write_fault(error, folder.path)}. It is saved in "
                f"{written} instead.",
                "Free space there, or make it writable; --resume latest then saves it in its place, too.",
            ) from error


def _places(config: TrainConfig, name: str, size: int) -> Iterator[Path]:
    """Folders of this run in the order in which they are tried: `rescue_dir`, then the home folder if it has room."""
    if config.rescue_dir is not None:
        yield _free_name(Path(config.rescue_dir).absolute(), name)
    with suppress(RuntimeError, OSError):  # there is no home folder
        home = Path.home()
        if home.is_dir() and shutil.disk_usage(home).free >= size + SPARE_BYTES and os.access(home, os.W_OK):
            yield _free_name(home / HOME_FOLDER, name)


def _free_name(folder: Path, name: str) -> Path:
    """What an earlier run of the same name left there stays."""
    number, found = 1, folder / name
    while os.path.lexists(found):
        number += 1
        found = folder / f"{name}-{number}"
    return found
