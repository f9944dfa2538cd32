"""Contents of the concept folders, read by a child process (modules.data.index.survey) and held for the window."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, cast

from app.child_program import start_module
from modules.config.captions import CaptionState
from modules.config.sections.concept import split_paths
from modules.files import expand_home
from modules.files.addresses import concept_folder, is_address

# The settings that determine the result of a survey.
SURVEY_SETTINGS = (
    *("concepts", "resolution", "aspect_ratio_bucketing", "no_upscale", "bucket_step", "largest_aspect"),
    "fewer_buckets",
    *("masked_training", "validation_split", "seed", "family", "frames", "fps"),
)
_COUNTED: Final = {
    "broken": "unreadable",
    "caption": "without a caption",
    "tiny": "too small",
    "video": "short or uneven",
    "duplicate": "duplicate",
}


@dataclass
class IndexedImage:
    """One image file of a concept; sizes in pixels."""

    concept: int
    relative: str  # path relative to the concept's folder
    file: Path
    width: int
    height: int
    bucket: str  # "WxH", or of a clip "WxHxFRAMES"
    caption: str  # one caption per line, or the only one; see CaptionFiles.caption
    caption_state: str  # found, missing, unreadable, empty, control (characters)
    references: tuple[Path, ...] = ()  # that it is made from; for families that edit images
    mask: Path | None = None  # with masked_training
    seconds: float = 0.0  # of a video

    @property
    def has_alpha_mask(self) -> bool:
        """Whether its mask is its own transparency."""
        return self.mask == self.file

    @property
    def frames(self) -> int:
        """With how many a video is trained; 1 of an image."""
        return int("".join(self.bucket.split("x")[2:]) or 1)

    @property
    def bucket_size(self) -> tuple[int, int]:
        """Width and height at which the image is trained, in pixels."""
        width, height, *_ = self.bucket.split("x")
        return int(width), int(height)


@dataclass(frozen=True)
class ImageProblem:
    """A problem with one file; `kind` is broken, caption, tiny, video or duplicate."""

    concept: int
    file: Path
    kind: str
    description: str


@dataclass
class ConceptFolder:
    """Result for one entry of `concepts`."""

    images: list[IndexedImage] = field(default_factory=list)
    error: str = ""
    problems: Counter[str] = field(default_factory=Counter)  # by kind
    summary: list[str] = field(default_factory=list)  # what a run says of it before training, line by line
    is_read: bool = False  # to its end
    median: tuple[int, int] = (0, 0)  # pixels
    samples: float = 0.0  # of an epoch, before the concept's repeats
    unused_masks: int = 0  # files, while masked_training is off
    masked: int = 0  # images with a mask, while it is on
    transparent: int = 0  # images whose transparency could be their mask, while it is on and no image has one
    numbered_folder: str = ""  # one from which folder_repeats would take the repeats, while it is off


@dataclass
class ImageIndex:
    """Result of one survey, possibly still growing."""

    folders: dict[int, ConceptFolder] = field(default_factory=dict)
    problems: list[ImageProblem] = field(default_factory=list)
    buckets: list[tuple[str, int, int]] = field(default_factory=list)  # "WxH", images, samples of an epoch
    error: str = ""  # why the survey failed

    @property
    def images(self) -> list[IndexedImage]:
        """All images in concept order."""
        return [image for number in sorted(self.folders) for image in self.folders[number].images]

    def snapshot(self) -> ImageIndex:
        """A copy that the running survey no longer changes."""
        folders = {
            number: replace(each, images=list(each.images), problems=each.problems.copy())
            for number, each in self.folders.items()
        }
        return ImageIndex(folders, list(self.problems), list(self.buckets), self.error)

    def add(self, record: Mapping[str, object]) -> None:
        """Add one record of the survey. Raises KeyError, TypeError or ValueError if it is malformed."""
        match record["type"]:
            case "pictures":
                number, root, rows = _integer(record["concept"]), Path(str(record["root"])), record["rows"]
                assert isinstance(rows, list)
                self._folder(number).images.extend(_parse_image(number, root, row) for row in rows)
            case "problem":
                number, file = _integer(record["concept"]), Path(str(record["path"]))
                self.problems.append(ImageProblem(number, file, str(record["kind"]), str(record["what"])))
                self._folder(number).problems[str(record["kind"])] += 1
            case "concept":
                folder, summary = self._folder(_integer(record["concept"])), record.get("summary", [])
                assert isinstance(summary, list)
                folder.is_read = True
                folder.error, folder.summary = str(record.get("error", "")), [str(line) for line in summary]
                if not folder.error:
                    width, height = cast("list[object]", record["median"])
                    folder.median, folder.samples = (_integer(width), _integer(height)), float(str(record["samples"]))
                    folder.unused_masks = _integer(record["unused_masks"])
                    folder.masked, folder.transparent = _integer(record["masked"]), _integer(record["transparent"])
                    folder.numbered_folder = str(record["numbered_folder"])
            case "error":
                self.error = str(record["message"])
            case "buckets":
                buckets = record["buckets"]
                assert isinstance(buckets, list)
                self.buckets = [(str(name), int(images), int(samples)) for name, images, samples in buckets]

    def captions_written(self, images: Iterable[IndexedImage]) -> bool:
        """Let the problems say what the captions of images, which were written or removed, are like now.

        False if they said so before.
        """
        said = {each.file: each for each in _caption_problems(images)}
        before = {each.file: each for each in self.problems if each.kind == "caption" and each.file in said}
        due = {file: now for file, now in said.items() if now.description != _description(before.get(file))}
        others = [each for each in self.problems if each.kind != "caption" or each.file not in due]
        self.problems = []
        for file, now in due.items():
            self._folder(now.concept).problems["caption"] += bool(now.description) - (file in before)
        new = {file: now for file, now in due.items() if now.description}
        for each in others:
            if each.file in new:  # beside what else is wrong with the image
                self.problems.append(new.pop(each.file))
            self.problems.append(each)
        self.problems += new.values()
        return bool(due)

    def keep_captions(self, written: Mapping[tuple[int, Path], IndexedImage]) -> bool:
        """Take over captions that were written, by concept and file; the survey may have read former ones.

        False if the problems said so before.
        """
        images = [each for each in self.images if (each.concept, each.file) in written]
        for each in images:
            now = written[each.concept, each.file]
            each.caption, each.caption_state = now.caption, now.caption_state
        return self.captions_written(images)

    def removed(self, files: Collection[Path]) -> None:
        """Unreadable images are gone: forget their problems."""
        for each in self.problems:
            if each.file in files:
                self._folder(each.concept).problems[each.kind] -= 1
        self.problems = [each for each in self.problems if each.file not in files]

    def _folder(self, number: int) -> ConceptFolder:
        return self.folders.setdefault(number, ConceptFolder())


def _caption_problems(images: Iterable[IndexedImage]) -> Iterator[ImageProblem]:
    """One for each image, also if nothing is wrong with its caption: its description is empty then."""
    for image in images:
        what = CaptionState[image.caption_state.upper()].explain()
        yield ImageProblem(image.concept, image.file, "caption", what)


def _description(problem: ImageProblem | None) -> str:
    return "" if problem is None else problem.description


def count_problems(kinds: Mapping[str, int]) -> str:
    """Such as "3 unreadable, 12 without a caption"; an unreadable file is worse than any number of small images."""
    counted = [(kinds.get(kind, 0), words) for kind, words in _COUNTED.items()]
    return ", ".join(f"{n:,} {words}{'s' * (n != 1 and words == 'duplicate')}" for n, words in counted if n)


def sum_problems(kinds: Mapping[str, int]) -> str:
    """Such as "12 without a caption", or of several kinds their number alone: "15 problems"."""
    found = [kind for kind in _COUNTED if kinds.get(kind)]
    return count_problems(kinds) if len(found) < 2 else f"{sum(kinds[kind] for kind in found):,} problems"


Child = subprocess.Popen[str]


def survey(
    settings: Mapping[str, object],
    size_step: int,
    is_wanted: Callable[[], bool],
    on_progress: Callable[[ImageIndex], None],
    on_start: Callable[[Child], None] = lambda child: None,
) -> ImageIndex:
    """Read the concept folders named in `settings` in a child process; call this off the main thread.

    `on_progress` receives the growing index after each record, `on_start` the child process, so that the caller can
    kill it. The survey stops early once `is_wanted()` returns False, which is checked between records.
    """
    survey_settings = {name: settings[name] for name in SURVEY_SETTINGS if name in settings}
    image_index = ImageIndex()
    with start_module("modules.data.index.survey", "-", str(size_step)) as child:
        on_start(child)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        # resolve relative folders against the window's working directory, not the child's
        with suppress(OSError):  # already killed
            child.stdin.write(json.dumps({**survey_settings, "concepts": absolute_concepts(settings.get("concepts"))}))
            child.stdin.close()
        for line in child.stdout:
            if not is_wanted():
                child.kill()
                break
            try:
                image_index.add(json.loads(line))
            except (ValueError, KeyError, TypeError, AssertionError):
                continue
            on_progress(image_index)
        stderr = child.stderr.read().strip()
    if child.returncode and is_wanted() and not image_index.error:
        image_index.error = stderr.splitlines()[-1] if stderr else "The images cannot be read."
    return image_index


def tag_counts(images: Iterable[IndexedImage]) -> list[tuple[str, int]]:
    """Every comma-separated tag with the number of captions that contain it, most frequent first."""
    counts: Counter[str] = Counter()
    for image in images:
        for caption in image.caption.split("\n"):
            counts.update({tag.strip() for tag in caption.split(",") if tag.strip()})
    return sorted(counts.items(), key=lambda tag: (-tag[1], tag[0]))


def absolute_concepts(concepts: object) -> list[object]:
    """The concepts with folders that a process with another working directory finds."""
    return [
        {**each, **_absolute_references(each), "path": path if is_address(path) else concept_folder(path)}
        if isinstance(each, Mapping) and isinstance(path := each.get("path"), str) and path
        else each
        for each in (concepts if isinstance(concepts, Iterable) else ())
    ]


def _absolute_references(concept: Mapping[str, object]) -> dict[str, object]:
    """The concept's folders of references, if it has some, as a process with another working directory finds them."""
    given = concept.get("references")
    paths = split_paths(given) if isinstance(given, str) else ()
    return {"references": "; ".join(str(expand_home(each).absolute()) for each in paths)} if paths else {}


def _parse_image(concept: int, root: Path, row: list[object]) -> IndexedImage:
    relative, width, height, bucket, caption, state, references, mask, seconds = row
    assert isinstance(references, list)
    return IndexedImage(
        concept,
        str(relative),
        root / str(relative),
        _integer(width),
        _integer(height),
        str(bucket),
        str(caption),
        str(state),
        tuple(Path(str(each)) for each in references),
        root / str(mask) if mask else None,
        float(str(seconds)),
    )


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"{value!r} is not an integer")
    return value
