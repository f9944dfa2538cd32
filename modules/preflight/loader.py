"""The data path: how fast images are encoded, and how fast the loader then delivers them.

It uses a few of the images and a small temporary cache next to the real one.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path

from modules.config import Concept, DataError, TrainConfig
from modules.data.archives.cifar import is_archive, unpacked_concept
from modules.data.cache.cache import Cache
from modules.data.cache.encode_batches import encode_batch_size
from modules.data.index.build import build_index
from modules.data.index.index import Index
from modules.data.index.scan import scan_concept
from modules.data.loading.item_batches import TRAIN, ItemBatches, item_loader
from modules.data.loading.loader import Examples, Loader, make_loader
from modules.data.loading.on_the_fly import OnTheFlyExamples
from modules.data.loading.order import make_order
from modules.families._family import Family
from modules.files import FileFault, read_bytes
from modules.preflight.cells import hosts_of
from modules.preflight.coordinator import Answer, Context, Coordinator
from modules.preflight.disk import existing_parent
from modules.preflight.images import NOT_SENT
from modules.run.preflight_report.report import Cell
from modules.training.data.class_labels import label_concepts, with_classes
from modules.training.data.custom_dataset import order_items
from modules.training.data.dataset import caches_images
from modules.training.memory.model_setup import check_available, load_family

_IMAGES = 32
_CHUNK = 8
_REPEATS = 100
_LARGEST_FILE = 1 << 30  # bytes
# Loading a large model comes first.
_TIMEOUT_FACTOR = 4.0


def measure_loader(context: Context) -> Answer:
    """Task of every rank: images encoded per second, and samples loaded per second with the config's settings."""
    if check_available(context.config).brings_data:
        return {"encoded_per_s": 0.0, "loaded_per_s": _load_items(context.config, context.timeout_s / 6)}
    with tempfile.TemporaryDirectory(
        prefix=".tandem-preflight-", dir=existing_parent(context.folders["cache_dir"])
    ) as folder:
        kind = check_available(context.config)
        config = _small_config(context.config, Path(folder), learns_classes=kind.learns_classes)
        index = build_index(config, config.seed, kind.size_step, Path(config.cache_dir))
        family = load_family(with_classes(config, index) if kind.learns_classes else config)
        family.device = context.device
        if caches_images(type(family), config):
            examples, encoded_per_s = _encode(config, family, index, context.timeout_s / 3)
        else:
            assert family.example_transform is not None
            examples, encoded_per_s = OnTheFlyExamples(index, config, family.example_transform), 0.0
        return {
            "encoded_per_s": encoded_per_s,
            "loaded_per_s": _load(config, family, index, examples, context.timeout_s / 6),
        }


def check(coordinator: Coordinator) -> Iterable[Cell]:
    """Yield one cell for all ranks, which load at the same time, and a red one for each that fails."""
    context = coordinator.context
    if not context.has_config or not context.thorough:
        reason = "no config given (--config FILE)" if not context.has_config else "only with --test all"
        yield Cell("loader", hosts_of(coordinator.first_ranks), "grey", reason)
        return
    if not context.has_data:
        yield Cell("loader", hosts_of(coordinator.first_ranks), "grey", NOT_SENT)
        return
    ranks = [member.rank for member in coordinator.alive]
    answers = coordinator.ask(ranks, "measure_loader", context.timeout_s * _TIMEOUT_FACTOR)
    for rank, answer in answers.items():
        if "error" in answer:
            yield Cell("loader", f"rank {rank}", "red", str(answer["error"]), ADVICE)
    good = {rank: answer for rank, answer in answers.items() if "error" not in answer}
    if good:
        slowest = min(good, key=lambda rank: float(str(good[rank]["loaded_per_s"])))
        loaded, encoded = (
            sum(float(str(a[name])) for a in good.values()) for name in ("loaded_per_s", "encoded_per_s")
        )
        least = f" (rank {slowest} {float(str(good[slowest]['loaded_per_s'])):.0f})" if len(good) > 1 else ""
        caching = f"new images are encoded once, at {encoded:.0f} images/s" if encoded else "nothing is cached"
        value = f"{loaded:.0f} samples/s{least} with loader_workers={context.config.loader_workers}; {caching}"
        yield Cell("loader", f"{len(good)} rank{'s' if len(good) > 1 else ''}", "green", value)


def _small_config(config: TrainConfig, folder: Path, *, learns_classes: bool) -> TrainConfig:
    """The same settings with a few of the images, which are copied into `folder`."""
    concepts = [concept for concept in config.concepts if concept.enabled and concept.kind == "train"]
    if not concepts:
        raise DataError("concepts: none has images to train on.")
    config = config.model_copy(update={"concepts": tuple(_unpacked(c, Path(config.cache_dir)) for c in concepts)})
    concepts = list((label_concepts(config) if learns_classes else config).concepts)
    with_videos = config.clip_step is not None
    shares = [
        _copied(c, folder / str(number), _IMAGES // len(concepts) or 1, with_videos)
        for number, c in enumerate(concepts)
    ]
    return config.model_copy(
        update={"concepts": tuple(shares), "cache_dir": str(folder / "cache"), "validation_split": 0.0}
    )


def _unpacked(concept: Concept, cache_dir: Path) -> Concept:
    if not is_archive(concept.path):
        return concept
    found = unpacked_concept(concept, cache_dir)
    if not Path(found.path).is_dir():
        raise DataError(f"concepts: {concept.path!r} is an archive that is not unpacked yet; start a run once.")
    return found


def _copied(concept: Concept, target: Path, count: int, with_videos: bool) -> Concept:
    scan = scan_concept(concept, with_masks=False, with_videos=with_videos)
    images = list(map(os.fsdecode, scan.paths[:: max(1, len(scan.paths) // count)][:count]))
    lists = [name for name, _ in (*scan.metadata, *scan.lists) if name not in scan.shards]
    for name in (*images, *map(scan.caption_file, images), *lists):
        with suppress(OSError, FileFault):  # an image without a caption
            data = read_bytes(os.path.join(scan.root, name), _LARGEST_FILE)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes(data)
    target.mkdir(parents=True, exist_ok=True)
    return concept.model_copy(update={"path": str(target), "repeats": _REPEATS})


def _encode(config: TrainConfig, family: Family, index: Index, seconds: float) -> tuple[Examples, float]:
    """Fill the small cache for about `seconds`; returns its contents and the images encoded per second."""
    texts = family.text_fingerprint()
    cache = Cache(Path(config.cache_dir), family.fingerprint(), index, config, family.encodes_captions, texts)
    size = encode_batch_size(config.cache_batch_size, config.largest_resolution, family.device.type)
    started, done, rows = time.perf_counter(), 0, cache.missing()
    chunk = max(_CHUNK, size)
    while done < len(rows) and time.perf_counter() - started < seconds:
        some = rows[done : done + chunk]
        cache.encode_captions(cache.missing_captions(some), size, family.encode_captions, 0)
        cache.encode(cache.batches(some, size), family.encode_batch, 0)
        done += len(some)
    return cache.load(), done / (time.perf_counter() - started)


def _load(config: TrainConfig, family: Family, index: Index, examples: Examples, seconds: float) -> float:
    """Samples per second that the loader delivers once its workers have started."""
    order = make_order(index, config, config.seed, examples.usable, config.batch_size)
    return _measure(
        make_loader(
            config,
            index,
            examples,
            order,
            family.sample_transform,
            batch_size=config.batch_size,
            source=family.source,
        ),
        seconds,
    )


def _load_items(config: TrainConfig, seconds: float) -> float:
    """As `_load`, for a family that brings its own data sets."""
    family = load_family(config)
    items = ItemBatches(family.data_sets())
    order = order_items(items.rows(TRAIN), config, config.batch_size)
    return _measure(
        item_loader(
            config,
            items,
            order,
            batch_size=config.batch_size,
            rank=0,
            world_size=1,
            min_micro_batches=1,
            equal_counts=False,
            source=family.source,
        ),
        seconds,
        _REPEATS,
    )


def _measure(loading: Loader, seconds: float, epochs: int = 1) -> float:
    """Samples per second once its workers have started, for at most so many epochs."""
    try:
        batches = chain.from_iterable(loading.epoch(epoch) for epoch in range(epochs))
        next(batches, None)
        started, samples = time.perf_counter(), 0
        for batch in batches:
            samples += len(batch)
            if time.perf_counter() - started > seconds:
                break
        return samples / (time.perf_counter() - started)
    finally:
        loading.close()


ADVICE = "Reproduce this error in one process: python scripts/train.py --config FILE --dry_run."
