"""The preflight's check of the data path: how fast pictures are prepared, and how fast the loader then delivers them.

It works on a few of the pictures and a small cache beside the real one, which it takes away again.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from modules.config import Concept, DataError, TrainConfig
from modules.config.concept import PICTURE_SUFFIXES
from modules.data.cache import Cache
from modules.data.groups import pictures_at_once
from modules.data.index import Index
from modules.data.indexing import build_index
from modules.data.loader import make_loader
from modules.data.order import Order
from modules.data.reading import CachedExamples
from modules.distributed.preflight import Answer, Check, Conductor, Context
from modules.distributed.preflight.disk import existing_parent
from modules.distributed.preflight.words import hosts_of, lost_cells
from modules.families.family import Family
from modules.run.checkup import Cell
from modules.run.join.fingerprint import data_listing
from modules.training.model_setup import load_family

_PICTURES = 32
_CHUNK = 8
_REPEATS = 100
# Loading a large model comes first.
_PATIENCES = 4.0


def loader(context: Context) -> Answer:
    """The task of every rank: pictures prepared a second, and samples loaded a second with the config's settings."""
    with tempfile.TemporaryDirectory(
        prefix=".tandem-preflight-", dir=existing_parent(context.folders["cache_dir"])
    ) as folder:
        config = _small_config(context.config, Path(folder))
        family = load_family(config)
        family.device = context.device
        index = build_index(config, family.size_step, Path(config.cache_dir))
        cached, prepared_per_s = _prepare(config, family, index, context.patience_s / 3)
        return {
            "prepared_per_s": prepared_per_s,
            "loaded_per_s": _load(config, family, index, cached, context.patience_s / 6),
        }


def check(conductor: Conductor) -> Iterable[Cell]:
    """One cell for all ranks together, which load at the same time; a red one for a rank that cannot."""
    context = conductor.context
    if not context.has_config or not context.thorough:
        why = "no config given (--config FILE)" if not context.has_config else "only with --test all"
        yield Cell("loader", hosts_of(conductor.firsts), "grey", why)
        return
    answers = conductor.ask([m.rank for m in conductor.living], "loader", context.patience_s * _PATIENCES)
    yield from lost_cells("loader", conductor)
    for rank, answer in answers.items():
        if "error" in answer:
            yield Cell("loader", f"rank {rank}", "red", str(answer["error"]), _ADVICE)
    good = {rank: answer for rank, answer in answers.items() if "error" not in answer}
    if good:
        slowest = min(good, key=lambda rank: float(str(good[rank]["loaded_per_s"])))
        loaded, prepared = (
            sum(float(str(a[name])) for a in good.values()) for name in ("loaded_per_s", "prepared_per_s")
        )
        least = f" (rank {slowest} {float(str(good[slowest]['loaded_per_s'])):.0f})" if len(good) > 1 else ""
        value = (
            f"{loaded:.0f} samples/s{least} with loader_workers={context.config.loader_workers}; a new picture is "
            f"prepared once, at {prepared:.0f} pictures/s"
        )
        yield Cell("loader", f"{len(good)} rank{'s' if len(good) > 1 else ''}", "green", value)


def _small_config(config: TrainConfig, folder: Path) -> TrainConfig:
    """The same settings on a few of the pictures, which are copied into `folder`."""
    concepts = [concept for concept in config.concepts if concept.enabled and concept.kind == "train"]
    if not concepts:
        raise DataError("concepts: none with pictures to train on.")
    shares = [_copied(c, folder / str(number), _PICTURES // len(concepts) or 1) for number, c in enumerate(concepts)]
    return config.model_copy(
        update={"concepts": tuple(shares), "cache_dir": str(folder / "cache"), "validation_split": 0.0}
    )


def _copied(concept: Concept, target: Path, count: int) -> Concept:
    root = Path(concept.path).expanduser()
    names = [name for name in sorted(data_listing(concept)) if Path(name).suffix.lower() in PICTURE_SUFFIXES]
    for name in names[:: max(1, len(names) // count)][:count]:
        for file in {root / name, (root / name).with_suffix(".txt")}:
            if file.is_file():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, (target / name).with_suffix(file.suffix))
    target.mkdir(parents=True, exist_ok=True)
    return concept.model_copy(update={"path": str(target), "repeats": _REPEATS})


def _prepare(config: TrainConfig, family: Family, index: Index, seconds: float) -> tuple[CachedExamples, float]:
    """Fill the small cache for at most about `seconds`; what is in it, and pictures a second."""
    cache = Cache(Path(config.cache_dir), family.fingerprint(), index, config, family.encodes_captions)
    size = pictures_at_once(config.cache_batch_size, config.resolution, family.device.type)
    began, done, rows = time.perf_counter(), 0, cache.missing()
    chunk = max(_CHUNK, size)
    while done < len(rows) and time.perf_counter() - began < seconds:
        some = rows[done : done + chunk]
        cache.encode(cache.groups(some, size), family.encode_together, 0)
        done += len(some)
    return cache.load(), done / (time.perf_counter() - began)


def _load(config: TrainConfig, family: Family, index: Index, cached: CachedExamples, seconds: float) -> float:
    """Samples a second that the loader delivers, after its workers have started."""
    order = Order.of(index, config, cached.usable, config.batch_size)
    loading = make_loader(config, index, cached, order, family.draw)
    try:
        batches = loading.epoch(0)
        next(batches, None)
        began, samples = time.perf_counter(), 0
        for batch in batches:
            samples += len(batch)
            if time.perf_counter() - began > seconds:
                break
        return samples / (time.perf_counter() - began)
    finally:
        loading.close()


LOADER = Check("loader", check, {"loader": loader})
_ADVICE = "Look at this error with one process: python scripts/train.py --config FILE --dry_run."
