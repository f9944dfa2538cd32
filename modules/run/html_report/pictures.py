"""Samples of a run as small pictures inside the report."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from PIL import Image

from modules.files import FileFault, printable
from modules.files.images import memory_to_decode, open_image
from modules.run.folder.run_folder import RunFolder
from modules.run.view.event_records import SampleFile

MOST_PROMPTS: Final = 8
MOST_STEPS: Final = 5  # of each prompt: the first, the last, and some between them
SIDE: Final = 320  # pixels, of the longer side
_QUALITY: Final = 82  # of WebP


@dataclass(frozen=True)
class Picture:
    """A sample as it is in the page; `data` is a data: address, empty if its file cannot be read."""

    step: int
    data: str
    is_small: bool  # fewer pixels than it is shown with, which should stay visible


@dataclass(frozen=True)
class PromptRow:
    """The samples of one prompt, in the order of their steps."""

    prompt: str
    pictures: list[Picture]


def sample_rows(samples: Iterable[SampleFile], folder: RunFolder) -> list[PromptRow]:
    """The samples of the first prompts, at the first, the last and some steps between."""
    by_place: dict[tuple[str, str], dict[int, SampleFile]] = {}
    for sample in samples:
        number = Path(sample.file).stem.rpartition("-")[2]  # the same prompt may be there twice, with other seeds
        by_place.setdefault((sample.prompt, number), {})[sample.step] = sample
    rows = []
    for (prompt, _), by_step in list(by_place.items())[:MOST_PROMPTS]:
        steps = _spread(sorted(by_step), MOST_STEPS)
        rows.append(PromptRow(printable(prompt), [_picture(by_step[step], folder) for step in steps]))
    return rows


def _picture(sample: SampleFile, folder: RunFolder) -> Picture:
    try:
        with open_image(folder.sample_file(sample.file)) as image, memory_to_decode(image):
            is_small = max(image.size) < SIDE
            small = image.convert("RGB")
    except (OSError, FileFault, ValueError, SyntaxError, Image.DecompressionBombError):
        return Picture(sample.step, "", is_small=False)
    small.thumbnail((SIDE, SIDE))
    encoded = io.BytesIO()
    small.save(encoded, format="PNG" if is_small else "WEBP", quality=_QUALITY)
    kind = "png" if is_small else "webp"
    return Picture(sample.step, f"data:image/{kind};base64,{base64.b64encode(encoded.getvalue()).decode()}", is_small)


def _spread(steps: list[int], count: int) -> list[int]:
    """At most `count` of them, evenly, with the first and the last."""
    if len(steps) <= count:
        return steps
    return [steps[round(number * (len(steps) - 1) / (count - 1))] for number in range(count)]
