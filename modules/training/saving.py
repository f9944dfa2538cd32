"""Saving what was trained: the model folder, and beside it the file that other tools open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path, PurePath

from modules.checkpoint import Position, save_model
from modules.checkpoint.formats import (
    DTYPES,
    PictureFolder,
    TrainingFacts,
    convert_weights,
    file_metadata,
    single_file,
)
from modules.training.adapters import export_of
from modules.training.assembly import Parts


def saving(parts: Parts, position: Position) -> Callable[[], list[Path]]:
    """What writes everything and returns the paths, with the weights as they are now; it raises OSError.

    All ranks ask for it, as all hold a part of the weights; rank 0 calls it.
    """
    config, folder = parts.config, parts.folder
    facts = training_facts(parts, position)
    metadata = file_metadata(config, facts, "diffusers")
    export = export_of(parts.family, parts.weights, config, metadata)
    dtype = DTYPES[config.save_dtype]

    def export_as_asked(partial: Path) -> None:
        export(partial)
        convert_weights(partial, dtype)

    def write() -> list[Path]:
        save_model(export_as_asked, folder.model_dir, config, position.step, metadata)
        if not (config.save_single_file and config.method == "fine_tune"):
            return [folder.model_dir]
        file = folder.path / f"{folder.name}.safetensors"
        single_file(folder.model_dir, file, dtype, file_metadata(config, facts, "original"))
        return [folder.model_dir, file]

    return write


def training_facts(parts: Parts, position: Position) -> TrainingFacts:
    """What the files say of the run at this position. Captions are counted only where they may be told."""
    return TrainingFacts(
        run_name=parts.folder.name,
        modelspec=parts.family.modelspec(),
        date=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        step=position.step,
        epoch=position.epoch,
        total_steps=parts.total_steps,
        world_size=position.world_size,
        pictures=len(parts.data.index),
        folders=_folders(parts),
    )


def _folders(parts: Parts) -> list[PictureFolder]:
    index, config = parts.data.index, parts.config
    counts = Counter(int(concept) for concept in index.concept)
    tags: dict[int, Counter[str]] = {number: Counter() for number in range(len(config.concepts))}
    for row, number in enumerate(index.concept if config.metadata_dataset else ()):
        delimiter = config.concepts[int(number)].tag_delimiter
        for caption in index.captions(row):
            tags[int(number)].update(tag.strip() for tag in caption.split(delimiter) if tag.strip())
    return [
        PictureFolder(
            name=PurePath(root).name,
            pictures=counts[number],
            repeats=config.concepts[number].repeats,
            prior=config.concepts[number].prior,
            tags=dict(tags[number].most_common()),
        )
        for number, root in enumerate(index.facts.roots)
        if root
    ]
