"""What `--dry_run` says about the data: the summary of a run, without its cache."""

from __future__ import annotations

from pathlib import Path

from modules.config import TrainConfig
from modules.data.archives.cifar import is_archive, unpacked_concept
from modules.data.index.build import read_index
from modules.data.index.concept_summary import summarize_concepts
from modules.data.index.expand import expand_concepts
from modules.data.missing import check_not_empty, missing_data
from modules.data.summary import concept_lines
from modules.families._family import Family
from modules.training.data.class_labels import label_concepts


def data_lines(config: TrainConfig, kind: type[Family]) -> tuple[list[str], list[str]]:
    """Lines about the concepts, and warnings. Raises DataError if no image is left to train on, and ConfigError if none
    has what a setting needs."""
    if kind.brings_data:
        return [], []
    cache_dir = Path(config.cache_dir)
    packed = [each.path for each in config.concepts if each.enabled and is_archive(each.path)]
    if not all(Path(unpacked_concept(c, cache_dir).path).is_dir() for c in config.concepts if c.path in packed):
        return [f"Archives are unpacked when the run starts: {', '.join(packed)}"], []
    concepts = tuple(unpacked_concept(c, cache_dir) if c.path in packed else c for c in config.concepts)
    config = config.model_copy(update={"concepts": concepts})
    config = expand_concepts(label_concepts(config) if kind.learns_classes else config)
    index = read_index(config, config.seed, kind.size_step, cache_dir)
    check_not_empty(config, index)
    summaries = summarize_concepts(config.concepts, index, uses_masks=config.masked_training)
    return concept_lines(summaries), missing_data(config, index)
