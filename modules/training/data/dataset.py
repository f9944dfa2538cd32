"""The data path of a run, from the config's folders to a loader: index, cache, order, loader. Ranks share the work."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from modules.config import Concept, ConfigError, TandemError, TrainConfig
from modules.data.archives.cifar import is_archive, unpack, unpacked_concept
from modules.data.batch import Example
from modules.data.cache.cache import Cache
from modules.data.cache.encode_batches import EncodeBatches, encode_batch_size
from modules.data.cache.reader import CachedExamples
from modules.data.cache.rounding import round_latents
from modules.data.cache.stored import mark_used
from modules.data.captions import plain_caption
from modules.data.index.build import build_index
from modules.data.index.expand import expand_concepts
from modules.data.index.index import Index, index_path, load_index
from modules.data.index.problems import Problem, write_problems
from modules.data.index.scan import concept_root
from modules.data.loading.data_record import DataTable, FormerData, dump_record, former_data, resumed_order
from modules.data.loading.loader import Examples, Loader, make_loader
from modules.data.loading.on_the_fly import OnTheFlyExamples, file_hashes
from modules.data.loading.order import Order, StepSamples, make_order, validation_steps
from modules.data.loading.shares import Shares
from modules.data.missing import check_not_empty, missing_data
from modules.data.summary import summarize_dataset
from modules.distributed import RankGroup, SharedFolderGroups
from modules.families._family import Family
from modules.monitoring import Report
from modules.run.format_progress import format_bytes
from modules.training.data.cache_locks import Unmarked, hold_choosing, hold_in_use, locked_caches, remove_beyond
from modules.training.data.class_labels import label_concepts, with_classes
from modules.training.data.consistency import (
    check_same_images,
    check_same_index_file,
    check_same_view,
    report_unshared_cache,
)
from modules.training.data.copies import update_copies
from modules.training.data.unreadable_images import UnreadableImages
from modules.training.device.precision import Precision
from modules.training.step.finite_weights import encode_finite

RowSelection: TypeAlias = Callable[[Index], NDArray[np.int64]]  # int64 [selected]: rows of the index
_REPORT_EVERY_S: Final = 0.5
_CONCEPTS_IN_EVENT: Final = 200


@dataclass(frozen=True)
class Dataset:
    """Everything the training loop needs to know about the data."""

    index: Index | None  # of the images; None, as `examples`, for a family that brings its own data sets
    examples: Examples | None
    concepts: tuple[Concept, ...]  # as the index counts them
    order: Order
    loader: Loader
    validation: list[StepSamples]
    test: list[StepSamples]
    unreadable: UnreadableImages
    shares: Shares  # of the ranks
    table: DataTable | None = None  # of the images, for backups; None also for an order that does not go by image
    held: ExitStack = field(default_factory=ExitStack)  # the locks of the cache folder and of copies
    problems: frozenset[Problem] = frozenset()  # of files, which were told

    def close(self) -> None:
        """End the loader's workers; others may remove what is cached."""
        self.loader.close()
        self.held.close()

    def record(self, samples_seen: int) -> bytes | None:
        """What a backup keeps of the data after `samples_seen` samples."""
        return None if self.table is None else dump_record(self.table, self.order, samples_seen)

    def former(self, samples_seen: int) -> FormerData | None:
        """The same, for the data that takes the place of this."""
        return None if self.table is None else former_data(self.table, self.order, samples_seen)


def prepare_dataset(
    config: TrainConfig,
    family: Family,
    precision: Precision,
    global_batch_size: int,
    ranks: RankGroup,
    report: Report,
    problems_file: Path,
    check_stop: Callable[[], None],
    *,
    shares: Shares,
    equal_micro_batches: bool = False,
    select_rows: RowSelection | None = None,
    former: FormerData | None = None,
    by_image: bool = True,
    new_index: Index | None = None,
    known_problems: Collection[Problem] = (),
    on_order: Callable[[Order], object] = lambda order: None,
) -> Dataset:
    """Index and encode what is new, then lay out the order of samples. Called by every rank.

    Raises DataError if nothing is usable, and whatever `check_stop` raises while images are encoded.
    `equal_micro_batches`: every rank gets the same number of micro-batches per step. `select_rows` says which images
    to encode; the others then count as unusable. `former` and `by_image` as in `Plan`. `new_index`: of data that takes
    the place of `former` while the run trains, and of which only the changes are told, and no `known_problems`, after
    `on_order`, which may refuse its order by an error.
    """
    progress = ProgressReport(report, check_stop)
    groups = ranks.shared_folder_groups("cache_dir", Path(config.cache_dir))
    if new_index is None:
        report_unshared_cache(groups, ranks, report)
    index = new_index
    if index is None:
        index = update_index(config, type(family), groups, ranks, progress, by_image=by_image)
    check_not_empty(config, index)
    check_sizes(config, family.longest_side(), index)
    precision.benchmark_convolutions(len(index.buckets))
    examples: Examples
    held = ExitStack()
    if is_cached := caches_images(type(family), config):
        if groups.is_first_in_group and new_index is None:
            hold_in_use(Path(config.cache_dir), ranks.rank, held)
        cache = open_cache(config, index, family, precision)
        with hold_choosing(Path(config.cache_dir), ranks.rank, held) if groups.is_first_in_group else nullcontext():
            cached = _fill_cache(cache, index, config, family, groups, ranks, progress, report, select_rows)
            if groups.is_first_in_group and not mark_used(cached.files()):
                raise Unmarked
        examples = cached
        _keep_limit(config, groups, ranks, report)
    else:
        examples = _on_the_fly(index, config, family, groups, ranks)
    make = partial(make_order, index, config, config.seed, examples.usable, global_batch_size, by_image=by_image)
    trained, changes = examples.usable & ~index.validation, ""
    # what only some machines may know of unusable images is left out: all go on with the same order
    contents = np.where(examples.usable, examples.contents, np.uint64(0))
    table = None
    if by_image:
        identities = index.identities(config.concepts)
        captions = index.caption_texts.unpack
        table = DataTable.of(identities, contents, trained, index.paths.joined(), is_read=is_cached, captions=captions)
    if former is not None and table is not None:
        since = " since the backup" if new_index is None else ""
        order, changes = resumed_order(former, table, lambda turn: make(turn=turn), since)
    else:
        order = make()
    on_order(order)
    if changes:
        report.warning(changes)
    problems = [*index.problems(), *(examples.problems if select_rows is None else ())]
    ranks.run_on_rank0("problems", lambda: write_problems(problems, problems_file))
    if new_index is None:
        _report_dataset(config, family, index, examples, order, ranks, report)
    if told := [each for each in problems if each not in known_problems]:
        report.warning(_problems_warning(told, problems_file, "" if new_index is None else "new "))
    loader = make_loader(
        config,
        index,
        examples,
        order,
        family.sample_transform,
        family.validation_transform,
        family.sample_mixing,
        batch_size=config.batch_size,
        rank=ranks.rank,
        world_size=ranks.world_size,
        min_micro_batches=config.gradient_accumulation_steps if config.global_batch_size else 1,
        equal_counts=equal_micro_batches,
        shares=shares,
        source=family.source,
    )
    size = validation_step_size(config, ranks, global_batch_size)
    validation, test = (
        validation_steps(index, config.concepts, config.seed, examples.usable, size, test=test)
        for test in (False, True)
    )
    is_followed = config.rescan == "epoch" and by_image
    unreadable = UnreadableImages(len(index), ranks, report, problems_file, problems, may_go=is_followed)
    return Dataset(
        index,
        examples,
        config.concepts,
        order,
        loader,
        validation,
        test,
        unreadable,
        shares,
        table,
        held,
        frozenset(problems),
    )


def run_steps(order: Order, config: TrainConfig) -> int:
    """Optimizer steps of the whole run."""
    by_epochs = order.progress(0).steps_until(config.epochs)
    return by_epochs if config.max_steps is None else min(by_epochs, config.max_steps)


def validation_step_size(config: TrainConfig, ranks: RankGroup, global_batch_size: int) -> int:
    """The samples of all ranks that are measured together: as in a step of training, unless validation has a size."""
    return (config.validation_batch_size or 0) * ranks.world_size or global_batch_size


def caches_images(kind: type[Family], config: TrainConfig) -> bool:
    """Whether a run encodes its images once, instead of decoding them each time they are sampled."""
    return kind.image_cache == "required" or (kind.image_cache == "optional" and config.cache_latents)


def check_validation(config: TrainConfig, data: Dataset) -> None:
    """Raises ConfigError if a setting needs validation data and there is none: a config alone may not show that."""
    if data.validation:
        return
    needed = {"early_stopping_patience": config.early_stopping_patience, "restore_best": config.restore_best}
    for name, value in needed.items():
        if value:
            raise ConfigError(
                f"{name} is {str(value).lower()}, but there is no validation data.",
                "Set validation_split above 0, or add data for validation.",
            )


def check_sizes(config: TrainConfig, longest: int | None, index: Index) -> None:
    """Raises ConfigError if images are in a bucket with a side of more than `longest` pixels."""
    if longest is None:
        return
    too_long = [max(bucket.height, bucket.width) > longest for bucket in index.buckets]
    beyond = index.bucket[np.array(too_long)[index.bucket]]
    if len(beyond):
        bucket = index.buckets[int(beyond[0])]
        raise ConfigError(
            f"resolution is {config.resolution}: with aspect_ratio_bucketing {len(beyond):,} of {len(index):,} images "
            f"are trained at sizes such as {bucket} pixels, and the positions of {config.base_model!r} cover {longest} "
            "along a side.",
            f"Use a resolution of at most {config.resolution * longest // max(bucket.height, bucket.width)}, or set "
            "aspect_ratio_bucketing to false.",
        )


def cache_fingerprint(family: Family, precision: Precision, stored: str = "fp32") -> str:
    """What the encoded images depend on. TF32 rounds more than fp32, on a CPU or a GPU, whose caches are shared; of
    `stored` (`cache_precision`), each has entries of its own."""
    kept = f" {stored}" if stored != "fp32" and family.latent_names else ""
    return family.fingerprint() + _rounding(family, precision) + kept


def open_cache(config: TrainConfig, index: Index, family: Family, precision: Precision) -> Cache:
    """The cache of the images and captions of an index, as the family encodes them."""
    texts = family.text_fingerprint()
    return Cache(
        Path(config.cache_dir),
        cache_fingerprint(family, precision, config.cache_precision),
        index,
        config,
        family.encodes_captions,
        texts and texts + _rounding(family, precision),
    )


def encode_for_cache(
    config: TrainConfig, family: Family, examples: Sequence[Example], size: int
) -> Sequence[Mapping[str, Tensor]]:
    """What is stored of at most `size` images of one bucket. Raises TrainingError for numbers that cannot be kept."""
    encoded = encode_finite(config, family, family.encode_batch, examples, size)
    return round_latents(encoded, family.latent_names, config.cache_precision)


def _rounding(family: Family, precision: Precision) -> str:
    return " tf32" if precision.tf32 and family.encoders else ""


def resolve_data(
    config: TrainConfig,
    kind: type[Family],
    ranks: RankGroup,
    report: Report,
    check_stop: Callable[[], None],
    held: ExitStack,
    *,
    by_image: bool = True,
) -> TrainConfig:
    """What the family and its data are prepared with: addresses are downloaded, archives unpacked, folders of kohya's
    become concepts, and classes are found if it learns them.

    Called by every rank. Until `held` is closed, other runs leave what is downloaded as it is. Raises DataError if an
    address cannot be read, an archive is damaged, or not each image has one class.
    """
    if kind.brings_data:
        return config
    progress = ProgressReport(report, check_stop)
    update_copies(config, ranks, report, check_stop, held)
    _unpack_archives(config, ranks, progress)
    config = resolve_concepts(config, kind)
    if not kind.learns_classes:
        return config
    groups = ranks.shared_folder_groups("cache_dir", Path(config.cache_dir))
    return with_classes(config, update_index(config, kind, groups, ranks, progress, by_image=by_image))


def resolve_concepts(config: TrainConfig, kind: type[Family]) -> TrainConfig:
    """The config with the concepts that its files make of it as they are now: of archives what is unpacked, of kohya's
    folders one each, and the source of labels of a family that learns classes."""
    archives = _archives(config)
    concepts = (unpacked_concept(c, Path(config.cache_dir)) if c.path in archives else c for c in config.concepts)
    config = config.model_copy(update={"concepts": tuple(concepts)}) if archives else config
    return expand_concepts(label_concepts(config) if kind.learns_classes else config)


def _archives(config: TrainConfig) -> set[str]:
    return {concept.path for concept in config.concepts if concept.enabled and is_archive(concept.path)}


def _unpack_archives(config: TrainConfig, ranks: RankGroup, progress: ProgressReport) -> None:
    """The first rank at each cache folder unpacks."""
    cache_dir, archives = Path(config.cache_dir), _archives(config)
    if not any(ranks.gather("archives", "found" if archives else "")):
        return
    groups = ranks.shared_folder_groups("cache_dir", cache_dir)

    def unpack_all() -> None:
        for path in sorted(archives) if groups.is_first_in_group else ():
            unpack(path, cache_dir, progress.callback("unpacking", 1))

    ranks.run_on_all("archives", unpack_all)


def update_index(
    config: TrainConfig,
    kind: type[Family],
    groups: SharedFolderGroups,
    ranks: RankGroup,
    progress: ProgressReport,
    *,
    by_image: bool = True,
) -> Index:
    """The first rank at each cache folder brings the index up to date, then all map it."""
    cache_dir = Path(config.cache_dir)

    file = index_path(config, config.seed, kind.size_step, cache_dir, by_image=by_image)
    check_same_index_file(file, [concept_root(concept) for concept in config.concepts], groups, ranks)

    def update() -> None:
        if groups.is_first_in_group:
            on_progress = progress.callback("indexing", 1)
            build_index(config, config.seed, kind.size_step, cache_dir, on_progress, by_image=by_image)

    ranks.run_on_all("index", update)
    return load_index(file)


def _fill_cache(
    cache: Cache,
    index: Index,
    config: TrainConfig,
    family: Family,
    groups: SharedFolderGroups,
    ranks: RankGroup,
    progress: ProgressReport,
    report: Report,
    select_rows: RowSelection | None,
) -> CachedExamples:
    """The ranks that share a cache folder (all of them, or only the first) encode what is missing from it."""
    size = encode_batch_size(config.cache_batch_size, config.largest_resolution, family.device.type)
    batches: list[EncodeBatches] = []
    captions: list[str] = []

    def find_missing() -> None:
        """Before any rank writes, so that all see the same missing and take different parts of it."""
        _share_table(cache, groups, ranks)
        rows = None if select_rows is None else select_rows(index)
        missing = cache.missing()
        batches[:] = [cache.batches(missing if rows is None else np.intersect1d(missing, rows), size)]
        captions[:] = cache.missing_captions(rows)

    find_missing()
    if cache.former_entries:
        report.note(
            f"{cache.former_entries:,} images were cached by an earlier version, in one entry with their captions: "
            "images and captions are now encoded again, each alone. `scripts/cache.py prune` removes what is not used."
        )
    encoders = len(groups.group) if config.distributed_data_loading else 1
    on_progress = progress.callback("caching", encoders)
    on_caption = progress.callback("caching captions", encoders)

    def encode_part() -> None:
        if groups.index_in_group < encoders:
            some = captions[groups.index_in_group :: encoders]
            encode_captions = partial(encode_finite, config, family, family.encode_captions)
            cache.encode_captions(some, size, encode_captions, ranks.rank, on_caption, report.warning)
            part = batches[0].for_rank(groups.index_in_group, encoders)
            if len(part):
                on_progress(0, len(part))  # reported before the first image, which may fail
            encode = partial(encode_for_cache, config, family)
            here = -(-ranks.world_size // ranks.machines) if config.distributed_data_loading else 1
            cache.encode(part, encode, ranks.rank, on_progress, report.warning, here)

    def is_missing() -> bool:
        return bool(len(batches[0]) or captions)

    locks = groups.is_first_in_group and is_missing()
    with locked_caches(Path(config.cache_dir), ranks, report, progress.check_stop, locks=locks) as has_waited:
        if has_waited:
            find_missing()
        ranks.run_on_all("caching", encode_part)
        if any(ranks.gather("cached", "new" if is_missing() else "")):
            _share_table(cache, groups, ranks)
    cached = cache.load()
    if groups.is_shared_by_all:
        check_same_view(index, cached.usable, ranks)
    else:
        check_same_images(index, cache.content_hashes(), ranks)
    return cached


def _keep_limit(config: TrainConfig, groups: SharedFolderGroups, ranks: RankGroup, report: Report) -> None:
    """The first rank at each cache folder removes what is beyond `cache_limit`."""
    if config.cache_limit is None:
        return
    limit = int(config.cache_limit * 1e9)

    def remove() -> None:
        if not groups.is_first_in_group:
            return
        try:
            freed, used = remove_beyond(Path(config.cache_dir), limit)
        except (OSError, TandemError) as error:
            report.warning(f"cache_limit: nothing could be removed from {config.cache_dir}: {error}")
            return
        if freed:
            report.note(f"cache_limit: {format_bytes(freed)} that were unused for longest are removed from the cache.")
        if used > limit:
            report.warning(
                f"cache_limit is {config.cache_limit:g} GB, but what running runs use of {config.cache_dir} takes "
                f"{format_bytes(used)}: nothing of that is removed."
            )

    ranks.run_on_all("cache limit", remove)


def _share_table(cache: Cache, groups: SharedFolderGroups, ranks: RankGroup) -> None:
    """The first rank at each cache folder finds out what is cached, and the others map what it has found."""
    names = [""]

    def update() -> None:
        if groups.is_first_in_group:
            names[0] = cache.update()

    ranks.run_on_all("cache", update)
    found = ranks.gather("cache table", names[0])
    if not groups.is_first_in_group:
        cache.follow(found[groups.group[0]])


def _on_the_fly(
    index: Index, config: TrainConfig, family: Family, groups: SharedFolderGroups, ranks: RankGroup
) -> Examples:
    assert family.example_transform is not None, "a family with image_cache optional or none has one"
    examples = OnTheFlyExamples(index, config, family.example_transform)
    if groups.is_shared_by_all:
        check_same_view(index, examples.usable, ranks)
    else:
        check_same_images(index, file_hashes(index), ranks)
    return examples


def _report_dataset(
    config: TrainConfig,
    family: Family,
    index: Index,
    examples: Examples,
    order: Order,
    ranks: RankGroup,
    report: Report,
) -> None:
    """Log the summary of the dataset, and warn about captions."""
    if ranks.rank != 0:  # at a million images each of what follows takes a second and 100 MB
        return
    summary = summarize_dataset(index, examples, order, config.concepts, uses_masks=config.masked_training)
    report.data(summary.lines(), [asdict(concept) for concept in summary.concepts[:_CONCEPTS_IN_EVENT]])
    for warning in missing_data(config, index, is_cached=caches_images(type(family), config)):
        report.warning(warning)
    concepts = [config.concepts[number] for number in index.concept]
    captions = [plain_caption(caption, each) for row, each in enumerate(concepts) for caption in index.captions(row)]
    for warning in family.prompt_warnings(captions):
        report.warning(warning)
    if config.method == "embedding" and not any(config.embedding_token in caption for caption in captions):
        report.warning(
            f"The token {config.embedding_token!r} is in none of the {len(captions):,} captions, so nothing is "
            "learned; add it to the captions, or to the prompt_prefix of the concept."
        )


def _problems_warning(problems: Sequence[Problem], problems_file: Path, new: str = "") -> str:
    count = f"{len(problems):,} {new}files have problems" if len(problems) > 1 else f"1 {new}file has a problem"
    skipped = sum(each.what.startswith("skipped") for each in problems)
    are = "is" if skipped == 1 else "are"
    some = f", {skipped:,} of which {are} skipped" if 0 < skipped < len(problems) else ""
    return f"{count}{some}, for example {problems[0].line()}. All are listed in {problems_file}."


class ProgressReport:
    """Reports counted progress at most twice a second, and checks whether the run should stop."""

    def __init__(self, report: Report, check_stop: Callable[[], None]) -> None:
        self._report = report
        self.check_stop = check_stop
        self._reported_at = 0.0
        self._phase = ""

    def callback(self, phase: str, workers: int) -> Callable[[int, int], None]:
        """A callback (done, total) for this rank's part of work that `workers` ranks share about equally."""

        def on_progress(done: int, total: int) -> None:
            now = time.monotonic()
            if now - self._reported_at >= _REPORT_EVERY_S or done >= total or phase != self._phase:
                self._reported_at, self._phase = now, phase
                self.check_stop()
                self._report.phase(phase, done * workers, total * workers)

        return on_progress
