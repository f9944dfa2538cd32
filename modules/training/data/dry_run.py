"""What `--dry_run` says about the data: the summary of a run, without its cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from modules.config import TrainConfig, options
from modules.data.archives.cifar import is_archive, unpacked_concept
from modules.data.index.build import read_index
from modules.data.index.concept_summary import ConceptSummary, summarize_concepts
from modules.data.missing import check_not_empty, missing_data
from modules.data.summary import concept_lines
from modules.families._family import Family
from modules.run.suggestions import BatchMemory, ConceptData, suggest
from modules.training.data.copies import copies, state_of
from modules.training.data.custom_dataset import RESCAN_IS_UNUSED
from modules.training.data.dataset import caches_images, resolve_concepts


def data_lines(
    config: TrainConfig, kind: type[Family], world_size: int = 1, memory: BatchMemory | None = None
) -> tuple[list[str], list[str]]:
    """Lines about the concepts and what suits them, and warnings.

    Raises DataError if no image is left to train on, and ConfigError if none has what a setting needs.
    """
    if kind.brings_data:
        return [], [RESCAN_IS_UNUSED] if config.rescan == "epoch" else []
    cache_dir = Path(config.cache_dir)
    packed = [each.path for each in config.concepts if each.enabled and is_archive(each.path)]
    if not all(Path(unpacked_concept(c, cache_dir).path).is_dir() for c in config.concepts if c.path in packed):
        return [f"Archives are unpacked when the run starts: {', '.join(packed)}"], []
    elsewhere, said = copies(config), list[str]()
    for copy in elsewhere:
        said += state_of(copy)
    if not all(copy.is_complete and not copy.missing for copy in elsewhere):
        return said, []
    config = resolve_concepts(config, kind)
    index = read_index(config, config.seed, kind.size_step, cache_dir)
    check_not_empty(config, index)
    summaries = summarize_concepts(config.concepts, index, uses_masks=config.masked_training)
    lines = said + concept_lines(summaries)
    lines += suggestion_lines(config, [_data(each) for each in summaries], kind.size_step, world_size, memory)
    return lines, missing_data(config, index, is_cached=caches_images(kind, config))


def suggestion_lines(
    config: TrainConfig, data: Sequence[ConceptData], size_step: int, world_size: int, memory: BatchMemory | None
) -> list[str]:
    """What suits the data better than a default; what was set otherwise is the user's choice."""
    defaults = {option.path: option.default for option in options(TrainConfig) if "." not in option.path}

    def is_default(path: str) -> bool:
        return path in defaults and getattr(config, path) == defaults[path]

    found = suggest(config, data, size_step=size_step, world_size=world_size, memory=memory, may_change=is_default)
    lines = [f"  {each.path}={each.value}: {each.reason}" for each in found if each.value != defaults[each.path]]
    return ["These are at their defaults; rules of thumb suggest for the data:", *lines] if lines else []


def _data(summary: ConceptSummary) -> ConceptData:
    trained = summary.images - summary.held_out
    return ConceptData(summary.number, trained, trained, *summary.median)
