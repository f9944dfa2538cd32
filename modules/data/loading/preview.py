"""`python -m modules.data.loading.preview FOLDER SIZE_STEP EPOCH COUNT [cached]`: images as training will see them.

The window runs it in a child process. Standard input is a config as JSON. The first COUNT samples of an epoch, drawn
by the code that training uses, are written to FOLDER as PNG; for each a line of JSON is printed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from PIL import Image
from torch import Tensor

from modules.config import Concept, ConfigError, TandemError, TrainConfig, effective_batch, validate
from modules.config.sections.data import DataSettings
from modules.data.batch import Example, ExampleTransform
from modules.data.cache.crops import Crop
from modules.data.cache.keys import ViewKeys
from modules.data.captions import augment_caption
from modules.data.index.build import build_index
from modules.data.index.expand import expand_concepts
from modules.data.index.index import Index
from modules.data.loading.on_the_fly import OnTheFlyExamples, UnreadableImage
from modules.data.loading.order import Order, make_order
from modules.data.rng import SampleRng
from modules.files import FileFault, decode_json

LIMIT: Final = 200  # images in one preview


@dataclass(frozen=True)
class Preview:
    """One sample: its image `file`, of a clip the first frame; the original `source`, both sizes in pixels (width,
    height), and the caption."""

    file: str
    source: str
    source_size: tuple[int, int]
    size: tuple[int, int]
    caption: str
    flipped: bool
    weight: float
    problem: str = ""
    frames: int = 1  # of a clip


class _Pixels:
    """Keeps what is seen of an example, and whether it was mirrored."""

    def __init__(self) -> None:
        self.flipped = False

    def __call__(self, example: Example) -> dict[str, Tensor]:
        self.flipped = example.flipped
        return {"pixels": example.pixels}


class _CachedViews(OnTheFlyExamples):
    """The views that the cache would hold, without encoding them."""

    def __init__(self, index: Index, settings: DataSettings, transform: ExampleTransform) -> None:
        super().__init__(index, settings, transform)
        self._keys = ViewKeys(index, settings, "", captions_in_key=False)

    def _crop(self, row: int, concept: Concept, rng: SampleRng | None) -> Crop:
        return self._keys.crop(row, 0 if rng is None else rng.integer(int(self._keys.views[row])))


def previews(
    config: TrainConfig, folder: Path, size_step: int, epoch: int, count: int, *, cached: bool
) -> Iterator[Preview]:
    """The first samples of an epoch, as one process would draw them. Raises DataError without a usable image."""
    config = expand_concepts(config)
    index = build_index(config, config.seed, size_step, folder)
    pixels = _Pixels()
    kind = _CachedViews if cached else OnTheFlyExamples
    examples = kind(index, config, pixels)
    order = make_order(index, config, config.seed, examples.usable, effective_batch(config, 1))
    for number, (row, seed, weight) in enumerate(_samples(order, epoch, count)):
        rng, concept = SampleRng(seed), config.concepts[int(index.concept[row])]
        problem = ""
        try:
            tensors = examples.sample(row, rng)
        except UnreadableImage as unreadable:
            tensors, problem = unreadable.blank, str(unreadable)
        caption = augment_caption(index.captions(row), concept, config.caption_dropout, rng)
        seen = tensors["pixels"]
        first = seen[:, 0] if seen.ndim == 4 else seen
        image = Image.fromarray(first.permute(1, 2, 0).numpy())
        file = folder / f"{number:04}.png"
        image.save(file, compress_level=1)
        source_size = int(index.width[row]), int(index.height[row])
        frames = index.buckets[index.bucket[row]].frames
        shown = (str(file), index.file(row), source_size, image.size, caption, pixels.flipped, weight, problem, frames)
        yield Preview(*shown)


def main(arguments: Sequence[str]) -> int:
    """Print a line for each sample, or {"error": ...}; returns an exit code."""
    if len(arguments) not in (4, 5) or not all(word.isdecimal() for word in arguments[1:4]):
        print("usage: preview FOLDER SIZE_STEP EPOCH COUNT [cached]", file=sys.stderr)
        return 2
    size_step, epoch, count = map(int, arguments[1:4])
    try:
        data = decode_json(sys.stdin.read())
        if not isinstance(data, dict):
            raise ConfigError("The settings are no group of settings.")
        config = validate(data, "the settings")
        folder, cached = Path(arguments[0]), "cached" in arguments[4:]
        for preview in previews(config, folder, size_step, epoch, min(count, LIMIT), cached=cached):
            print(json.dumps(asdict(preview)), flush=True)
    except (TandemError, FileFault) as error:
        print(json.dumps({"error": str(error)}))
        return 2
    return 0


def _samples(order: Order, epoch: int, count: int) -> Iterator[tuple[int, int, float]]:
    """(row, seed, weight) of the first samples of an epoch."""
    for step in range(order.steps_per_epoch):
        samples = order.step(epoch, step)
        for row, seed, weight in zip(samples.rows, samples.seeds, samples.weights, strict=True):
            if count == 0:
                return
            count -= 1
            yield int(row), int(seed), float(weight)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
