"""What the concept folders hold, asked of a child process (modules.data.survey) and kept for the window."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from app import texts

ROOT = Path(__file__).resolve().parents[2]

# The settings that decide what is told.
ASKED = ("concepts", "resolution", "aspect_ratio_bucketing", "masked_training")


@dataclass
class Picture:
    """One picture of a concept."""

    concept: int
    relative: str  # path below the concept's folder
    file: Path
    width: int
    height: int
    bucket: str  # "WxH"
    caption: str  # several captions: one a line
    caption_state: str  # found, missing, unreadable, empty

    @property
    def bucket_size(self) -> tuple[int, int]:
        """Width and height in which it is trained."""
        width, _, height = self.bucket.partition("x")
        return int(width), int(height)


@dataclass(frozen=True)
class Problem:
    """What is wrong with a file: broken, caption, tiny or duplicate, and in words."""

    concept: int
    file: Path
    kind: str
    what: str


@dataclass
class Folder:
    """What became of one entry of `concepts`."""

    pictures: list[Picture] = field(default_factory=list)
    error: str = ""
    problems: int = 0


@dataclass
class Catalogue:
    """The answer of one survey, complete or as far as it has come."""

    folders: dict[int, Folder] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    buckets: list[tuple[str, int]] = field(default_factory=list)
    fault: str = ""  # why there is no answer

    @property
    def pictures(self) -> list[Picture]:
        """All pictures in the order of the concepts."""
        return [picture for number in sorted(self.folders) for picture in self.folders[number].pictures]

    def snapshot(self) -> Catalogue:
        """What is known so far, which the survey no longer changes."""
        folders = {number: replace(each, pictures=list(each.pictures)) for number, each in self.folders.items()}
        return Catalogue(folders, list(self.problems), list(self.buckets), self.fault)

    def add(self, record: Mapping[str, object], roots: Mapping[int, Path]) -> None:
        """Take in one record of the survey. Raises KeyError, TypeError or ValueError where it is none."""
        match record["type"]:
            case "pictures":
                number = _whole(record["concept"])
                rows = record["rows"]
                assert isinstance(rows, list)
                self._folder(number).pictures.extend(_picture(number, roots[number], row) for row in rows)
            case "problem":
                number, file = _whole(record["concept"]), Path(str(record["path"]))
                self.problems.append(Problem(number, file, str(record["kind"]), str(record["what"])))
            case "concept":
                folder = self._folder(_whole(record["concept"]))
                folder.error = str(record.get("error", ""))
                folder.problems = _whole(record.get("problems", 0))
            case "buckets":
                buckets = record["buckets"]
                assert isinstance(buckets, list)
                self.buckets = [(str(name), int(count)) for name, count in buckets]

    def _folder(self, number: int) -> Folder:
        return self.folders.setdefault(number, Folder())


Child = subprocess.Popen[str]


def survey(
    settings: Mapping[str, object],
    size_step: int,
    is_wanted: Callable[[], bool],
    changed: Callable[[Catalogue], None],
    started: Callable[[Child], None] = lambda child: None,
) -> Catalogue:
    """Ask a child process about the concepts among `settings`; call this off the main thread.

    `changed` gets the growing catalogue after each piece. `is_wanted` is asked between pieces and ends it early;
    `started` gets the child, for those who want to kill it at once.
    """
    asked = {name: settings[name] for name in ASKED if name in settings}
    concepts = settings.get("concepts")
    roots = {
        number: Path(str(concept["path"])).expanduser().absolute()
        for number, concept in enumerate(concepts if isinstance(concepts, Iterable) else ())
        if isinstance(concept, Mapping) and concept.get("path")
    }
    catalogue = Catalogue()
    argv = [sys.executable, "-m", "modules.data.survey", "-", str(size_step)]
    with subprocess.Popen(
        argv,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
    ) as child:
        started(child)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        # relative folders are those of the window's own working directory, not of ROOT
        with suppress(OSError):  # it was killed already
            child.stdin.write(json.dumps({**asked, "concepts": _with_roots(concepts, roots)}))
            child.stdin.close()
        for line in child.stdout:
            if not is_wanted():
                child.kill()
                break
            try:
                catalogue.add(json.loads(line), roots)
            except (ValueError, KeyError, TypeError, AssertionError):
                continue
            changed(catalogue)
        said = child.stderr.read().strip()
    if child.returncode and is_wanted():
        catalogue.fault = said.splitlines()[-1].removeprefix("survey: ") if said else texts.PICTURES_UNREADABLE
    return catalogue


def tag_counts(pictures: Iterable[Picture]) -> list[tuple[str, int]]:
    """Every comma-separated tag and in how many captions it stands, the most frequent first."""
    counts: Counter[str] = Counter()
    for picture in pictures:
        for caption in picture.caption.split("\n"):
            counts.update({tag.strip() for tag in caption.split(",") if tag.strip()})
    return sorted(counts.items(), key=lambda found: (-found[1], found[0]))


def _with_roots(concepts: object, roots: Mapping[int, Path]) -> list[object]:
    entries = list(concepts) if isinstance(concepts, Iterable) else []
    return [
        {**entry, "path": str(roots[number])} if isinstance(entry, Mapping) and number in roots else entry
        for number, entry in enumerate(entries)
    ]


def _picture(concept: int, root: Path, row: list[object]) -> Picture:
    relative, width, height, bucket, caption, state = row
    return Picture(
        concept,
        str(relative),
        root / str(relative),
        _whole(width),
        _whole(height),
        str(bucket),
        str(caption),
        str(state),
    )


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value
