"""`python -m modules.data.survey FILE [SIZE_STEP]`: what a config's concept folders hold, as JSON, one object a line.

The window asks in a child process, so that it neither reads thousands of files itself nor imports what that takes.
FILE holds {"concepts": [...], "resolution": ..., ...} as a config does; "-" reads it from standard input.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from modules.config import DataError, TandemError, TrainConfig, validate
from modules.data.buckets import assign_buckets, make_buckets
from modules.data.captions import CaptionState
from modules.data.concepts import scan_concept
from modules.data.index import silent
from modules.data.index_part import IndexPart, index_concept

Record = dict[str, object]

_ROWS_A_LINE = 500
# Smaller than this share of the training area: enlarged to more than twice its sides.
_TINY = 0.25


def survey(config: TrainConfig, size_step: int = 8) -> Iterator[Record]:
    """Records about every concept, switched on or not: `pictures` in pieces, `problem`s, then one `concept` each;
    last the `buckets` of what would be learned from.

    A folder that cannot be read gives a concept with an `error`; nothing is raised for it.
    """
    buckets = make_buckets(config.resolution, size_step, config.aspect_ratio_bucketing)
    counts = np.zeros(len(buckets), dtype=np.int64)
    for number, concept in enumerate(config.concepts):
        try:
            scan = scan_concept(concept, config.masked_training)
        except DataError as error:
            yield {"type": "concept", "concept": number, "pictures": 0, "error": error.message}
            continue
        part = index_concept(number, scan, concept, None, silent)
        width, height = (part.columns[name].astype(np.int32) for name in ("width", "height"))
        bucket = assign_buckets(buckets, width, height)
        if concept.enabled and concept.kind == "train":
            counts += np.bincount(bucket, minlength=len(buckets))
        problems = list(_problems(part, scan.root, config.resolution))
        yield from _picture_records(part, [str(each) for each in buckets], bucket.tolist())
        yield from ({"type": "problem", "concept": number, **problem} for problem in problems)
        yield {
            "type": "concept",
            "concept": number,
            "root": scan.root,
            "pictures": len(part.paths),
            "other_files": dict(scan.other_files),
            "problems": len(problems),
        }
    yield {"type": "buckets", "buckets": [[str(b), n] for b, n in zip(buckets, counts.tolist(), strict=True) if n]}


def main(arguments: Sequence[str]) -> int:
    """Print the records; exit code 2 and one sentence where the config cannot be read."""
    if not 1 <= len(arguments) <= 2 or not all(word.isdecimal() for word in arguments[1:]):
        print("usage: python -m modules.data.survey FILE|- [SIZE_STEP]", file=sys.stderr)
        return 2
    try:
        text = sys.stdin.read() if arguments[0] == "-" else Path(arguments[0]).read_text("utf-8")
        config = validate(json.loads(text), "survey")
    except (OSError, ValueError, TandemError) as error:
        print(f"survey: {error}", file=sys.stderr)
        return 2
    for record in survey(config, *map(int, arguments[1:])):
        print(json.dumps(record), flush=True)
    return 0


def _picture_records(part: IndexPart, buckets: list[str], bucket: list[int]) -> Iterator[Record]:
    """Rows of [path below the folder, width, height, bucket, captions one a line, how the search for them ended]."""
    columns = part.columns
    rows = [
        [os.fsdecode(path), width, height, buckets[number], caption.decode("utf-8"), CaptionState(state).name.lower()]
        for path, caption, number, width, height, state in zip(
            part.paths,
            part.captions,
            bucket,
            columns["width"].tolist(),
            columns["height"].tolist(),
            columns["caption_state"].tolist(),
            strict=True,
        )
    ]
    for first in range(0, len(rows), _ROWS_A_LINE):
        yield {"type": "pictures", "concept": part.number, "rows": rows[first : first + _ROWS_A_LINE]}


def _problems(part: IndexPart, root: str, resolution: int) -> Iterator[dict[str, str]]:
    """Broken, uncaptioned, tiny and duplicate pictures: path, kind, and what is wrong in words."""
    for problem in part.problems:
        yield {"path": problem.path, "kind": "broken", "what": problem.what}
    paths = [os.path.join(root, os.fsdecode(path)) for path in part.paths]
    for row, state in enumerate(part.columns["caption_state"].tolist()):
        if state:
            yield {"path": paths[row], "kind": "caption", "what": CaptionState(state).explain()}
    widths, heights = part.columns["width"].tolist(), part.columns["height"].tolist()
    for path, width, height in zip(paths, widths, heights, strict=True):
        if width * height < _TINY * resolution**2:
            enlarged = (resolution**2 / (width * height)) ** 0.5
            what = f"{width}x{height} is small: it is enlarged {enlarged:.1f} times and will look soft"
            yield {"path": path, "kind": "tiny", "what": what}
    for path, first in _duplicates(paths, part.columns["size"].tolist()):
        yield {"path": path, "kind": "duplicate", "what": f"the same picture as {os.path.relpath(first, root)}"}


def _duplicates(paths: list[str], sizes: list[int]) -> Iterator[tuple[str, str]]:
    """(file, earlier file with the same bytes); only files of equal size are read."""
    by_size = defaultdict(list)
    for path, size in zip(paths, sizes, strict=True):
        by_size[size].append(path)
    for alike in (group for group in by_size.values() if len(group) > 1):
        seen: dict[bytes, str] = {}
        for path in alike:
            try:
                with open(path, "rb") as file:
                    content = hashlib.file_digest(file, "sha256").digest()
            except OSError:
                continue
            first = seen.setdefault(content, path)
            if first is not path:
                yield path, first


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
