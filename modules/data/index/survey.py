"""`python -m modules.data.index.survey FILE [SIZE_STEP]`: the contents of a config's concept folders as JSON lines.

The window runs this in a child process, so that it neither reads thousands of files itself nor imports numpy.
FILE holds {"concepts": [...], "resolution": ..., ...} as a config does; "-" reads it from standard input.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modules.config import Concept, DataError, TandemError, TrainConfig, validate
from modules.config.captions import CaptionState
from modules.data.archives.cifar import is_archive, unpacked_concept
from modules.data.index.buckets import Bucket, bucket_images, split_by_frames
from modules.data.index.build import in_validation_split, trained_frames
from modules.data.index.captions import unpack_captions
from modules.data.index.clips import clip_notes
from modules.data.index.concept_rows import ConceptRows, index_concept
from modules.data.index.concept_summary import ConceptSummary, caption_warnings, median_size, summarize_concept
from modules.data.index.doubtful import doubtful_images
from modules.data.index.expand import parts
from modules.data.index.index import no_progress
from modules.data.index.references import unpack_references
from modules.data.index.scan import concept_root, scan_concept
from modules.data.loading.order import balanced_repeats
from modules.files import FileFault, decode_json, open_regular, printable, read_text
from modules.files.addresses import is_address

Record = dict[str, object]

_ROWS_PER_RECORD = 500
_TINY = 0.25  # fraction of resolution² below which an image counts as tiny: both sides more than doubled


def survey(settings: TrainConfig, size_step: int = 8) -> Iterator[Record]:
    """Records for every concept, enabled or not: `pictures` (in chunks), `problem`s, then one `concept`; at the end
    the `buckets` that would be trained on: each with its images and, as a whole number, its samples of an epoch.

    A folder that cannot be read gives a `concept` with an `error`; nothing is raised.
    """
    trained: list[tuple[Concept, int, Counter[Bucket]]] = []  # parts of concepts, with the images that are not held out
    for number, concept in enumerate(settings.concepts):
        if is_archive(concept.path):
            unpacked = unpacked_concept(concept, Path(settings.cache_dir))
            if not os.path.isdir(unpacked.path):
                error = f"{concept.path!r} is an archive; its images are unpacked when a run starts"
                yield {"type": "concept", "concept": number, "pictures": 0, "error": error}
                continue
            concept = unpacked
        if is_address(concept.path) and not os.path.isdir(concept_root(concept)):
            error = f"{concept.path!r} is downloaded when training starts"
            yield {"type": "concept", "concept": number, "pictures": 0, "error": error}
            continue
        try:
            scans = [
                (part, scan_concept(part, settings.masked_training, settings.clip_step is not None))
                for part in parts(concept)
            ]
        except DataError as error:
            yield {"type": "concept", "concept": number, "pictures": 0, "error": error.message}
            continue
        root, images, faults, others, lines = concept_root(concept), 0, 0, Counter[str](), list[str]()
        roots, sizes, samples, masks, transparent, masked = set[str](), list[NDArray[np.int32]](), 0.0, 0, 0, 0
        for part, scan in scans:
            rows = index_concept(number, scan, part, None, no_progress, settings.most_references)
            width, height = (rows.columns[name].astype(np.int32) for name in ("width", "height"))
            alone = settings.model_copy(update={"concepts": (part,)})
            sized = bucket_images(alone, size_step, np.zeros(len(width), dtype=np.int32), width, height)
            buckets, bucket = split_by_frames(trained_frames(settings, rows.columns), *sized)
            summary = _summary(settings, part, rows, scan.other_files, buckets, bucket)
            if concept.enabled and concept.kind == "train":
                found = Counter(buckets[each] for each in bucket.tolist())
                trained.append((part, summary.images - summary.held_out, found))
            lines += [*summary.lines(), *caption_warnings(summary)]
            samples += (summary.images - summary.held_out) * part.repeats / concept.repeats
            if scan.root in roots:  # at another resolution
                continue
            roots.add(scan.root)
            lines += _doubtful(part, scan.root, rows, settings)
            trained_with = [buckets[each].frames for each in bucket.tolist()]
            problems = list(_problems(rows, scan.root, settings.resolution_of(part), trained_with, settings.frames))
            below = os.path.relpath(scan.root, root).replace(os.sep, "/") + "/"
            yield from _image_records(
                rows, part, root, below.removeprefix("./"), [str(each) for each in buckets], bucket.tolist()
            )
            yield from ({"type": "problem", "concept": number, **problem} for problem in problems)
            images, faults, others = images + len(rows.paths), faults + len(problems), others + scan.other_files
            sizes.append(np.stack([width, height]))
            masks, masked = masks + rows.findings.masks, masked + summary.masked
            transparent += summary.transparent
        yield {
            "type": "concept",
            "concept": number,
            "root": root,
            "pictures": images,
            "other_files": dict(others),
            "problems": faults,
            "summary": lines,
            "median": median_size(*np.concatenate(sizes, axis=1)),
            "samples": samples,
            "unused_masks": 0 if settings.masked_training else masks,
            "masked": masked,
            "transparent": transparent,
            "numbered_folder": _numbered_folder(concept),
        }
    yield {"type": "buckets", "buckets": _bucket_rows(trained)}


def _bucket_rows(trained: Sequence[tuple[Concept, int, Counter[Bucket]]]) -> list[list[object]]:
    """[size, images, samples of an epoch] of each bucket, by shape; held-out images are taken from all alike."""
    repeats = balanced_repeats([part for part, *_ in trained], np.array([number for _, number, _ in trained]))
    images, samples = Counter[Bucket](), Counter[Bucket]()
    for (_, number, counts), each in zip(trained, repeats, strict=True):
        images += counts
        share = each * number / max(1, counts.total())
        samples.update({bucket: share * count for bucket, count in counts.items()})
    by_shape = sorted(images, key=lambda bucket: (bucket.width / bucket.height, bucket.width, bucket.frames))
    return [[str(bucket), images[bucket], round(samples[bucket])] for bucket in by_shape]


def _numbered_folder(concept: Concept) -> str:
    """A folder that `folder_repeats` would take the repeats from, such as "10_sks dog"; empty if it is on, or none."""
    if concept.folder_repeats:
        return ""
    first = parts(concept.model_copy(update={"folder_repeats": True, "enabled": True, "resolutions": ""}))[0]
    return "" if first.path == concept.path else os.path.basename(first.path)


def _summary(
    settings: TrainConfig,
    concept: Concept,
    rows: ConceptRows,
    other_files: Mapping[str, int],
    buckets: tuple[Bucket, ...],
    bucket: NDArray[np.int32],
) -> ConceptSummary:
    """The summary that a run gives of the concept."""
    columns = rows.columns
    concepts = np.full(len(rows.paths), rows.number, dtype=np.int32)
    path_hash = columns["path_hash"].astype(np.uint64)
    in_split = in_validation_split(path_hash, concepts, settings.seed, settings.validation_split)
    return summarize_concept(
        rows.number,
        concept,
        {**columns, "bucket": bucket, "validation": in_split | (concept.kind != "train")},
        buckets,
        lambda row: (os.fsdecode(rows.paths[row]), unpack_captions(rows.captions[row])[0]),
        rows.findings,
        other_files,
        uses_masks=settings.masked_training,
        most_frames=1 if settings.clip_step is None else settings.frames,
    )


def _doubtful(concept: Concept, root: str, rows: ConceptRows, settings: TrainConfig) -> Iterator[str]:
    return doubtful_images(
        concept,
        printable(root, 200),
        rows.columns["caption_place"].astype(np.int64),
        rows.paths,
        lambda row: unpack_captions(rows.captions[row]),
        clips=settings.clip_step is not None and settings.frames > 1,
    )


def main(arguments: Sequence[str]) -> int:
    """Print the records; exit code 2 and an `error` record if the config cannot be read."""
    if not 1 <= len(arguments) <= 2 or not all(word.isdecimal() for word in arguments[1:]):
        print("usage: python -m modules.data.index.survey FILE|- [SIZE_STEP]", file=sys.stderr)
        return 2
    try:
        text = sys.stdin.read() if arguments[0] == "-" else read_text(arguments[0])
        data = decode_json(text)
        if not isinstance(data, dict):
            raise FileFault("is no group of settings")
        config = validate(data, "survey")
    except (OSError, ValueError, TandemError) as error:
        print(json.dumps({"type": "error", "message": str(error)}))
        print(f"survey: {error}", file=sys.stderr)
        return 2
    for record in survey(config, *map(int, arguments[1:])):
        print(json.dumps(record), flush=True)
    return 0


def _image_records(
    rows: ConceptRows, concept: Concept, root: str, below: str, buckets: list[str], bucket: list[int]
) -> Iterator[Record]:
    """Records of rows [path below `root`, width, height, bucket, captions separated by newlines, CaptionState, paths of
    references, path of the mask below `root` or an empty one, seconds that a video lasts or 0]."""
    columns = rows.columns
    listed = [
        [
            below + os.fsdecode(path),
            width,
            height,
            buckets[number],
            "\n".join(unpack_captions(caption)),
            CaptionState(state).name.lower(),
            [each.path for each in unpack_references(references)],
            below + (os.fsdecode(mask) or os.path.splitext(os.fsdecode(path))[0] + concept.mask_suffix)
            if mask_size >= 0
            else "",
            round(frames / fps, 3) if fps else 0,
        ]
        for path, caption, references, mask, mask_size, number, width, height, state, frames, fps in zip(
            rows.paths,
            rows.captions,
            rows.references,
            rows.masks,
            columns["mask_file"][:, 0].tolist(),
            bucket,
            columns["width"].tolist(),
            columns["height"].tolist(),
            columns["caption_state"].tolist(),
            columns["frames"].tolist(),
            columns["fps"].astype(np.float64).tolist(),
            strict=True,
        )
    ]
    for first in range(0, len(listed), _ROWS_PER_RECORD):
        some = listed[first : first + _ROWS_PER_RECORD]
        yield {"type": "pictures", "concept": rows.number, "root": root, "rows": some}


def _problems(
    rows: ConceptRows, root: str, resolution: int, trained: list[int], most_frames: int
) -> Iterator[dict[str, str]]:
    """Broken, uncaptioned, tiny and duplicate images, short and uneven videos: path, kind, and what is wrong in plain
    words. `trained` are the frames that each is trained with."""
    for problem in rows.problems:
        yield {"path": problem.path, "kind": "broken", "what": problem.what}
    paths = [os.path.join(root, os.fsdecode(path)) for path in rows.paths]
    for row, state in enumerate(rows.columns["caption_state"].tolist()):
        if state not in (CaptionState.FOUND, CaptionState.UNREADABLE):
            yield {"path": paths[row], "kind": "caption", "what": CaptionState(state).explain()}
    for problem in rows.caption_faults:
        yield {"path": problem.path, "kind": "caption", "what": problem.what}
    widths, heights = rows.columns["width"].tolist(), rows.columns["height"].tolist()
    for path, width, height in zip(paths, widths, heights, strict=True):
        if width * height < _TINY * resolution**2:
            enlarged = (resolution**2 / (width * height)) ** 0.5
            what = f"{width}x{height} is small: it is enlarged {enlarged:.1f} times and will look soft"
            yield {"path": path, "kind": "tiny", "what": what}
    fps, frames, steady = (rows.columns[name] for name in ("fps", "frames", "is_steady"))
    for row in np.flatnonzero(fps).tolist():
        given = int(frames[row]), float(fps[row]), trained[row], most_frames
        for what in clip_notes(*given, is_steady=bool(steady[row])):
            yield {"path": paths[row], "kind": "video", "what": what}
    for path, first in _duplicates(paths, rows.columns["size"].tolist()):
        yield {"path": path, "kind": "duplicate", "what": f"the same image as {os.path.relpath(first, root)}"}


def _duplicates(paths: list[str], sizes: list[int]) -> Iterator[tuple[str, str]]:
    """(file, earlier file with the same bytes); only files of equal size (bytes) are read."""
    by_size = defaultdict(list)
    for path, size in zip(paths, sizes, strict=True):
        by_size[size].append(path)
    for same_size in (group for group in by_size.values() if len(group) > 1):
        seen: dict[bytes, str] = {}
        for path in same_size:
            try:
                with open_regular(path) as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            except (OSError, FileFault):
                continue
            first = seen.setdefault(content, path)
            if first is not path:
                yield path, first


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
