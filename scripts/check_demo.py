"""Does a demo model draw what its captions say? python scripts/check_demo.py MODEL_FOLDER [--samples 48] [--grid FILE].

Asks the model for pictures by caption, looks at each picture alone and compares what is seen with what was asked for.
Exit code 0 where at least 90 % of the colours and 75 % of the shapes are right, else 1.
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that the file can be started by its path

from modules.config import TandemError, TrainConfig, load_preset
from scripts.demo_shapes import BACKGROUNDS, COLOURS, OUTLINES, SIZES, Colour, Scene, area, draw_coverage, scenes

COLOURS_WANTED = 0.90
SHAPES_WANTED = 0.75

Pixels = NDArray[np.float64]
Draw = Callable[[str, int, int, int], Image.Image]  # caption, width, height, seed


@dataclass(frozen=True)
class Answer:
    """One picture, what was asked for and what is seen."""

    asked: Scene
    seen: Scene
    picture: Image.Image


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each picture and the two shares."""
    given = _arguments(arguments)
    try:
        draw = model_drawer(given.model_folder, given.steps, given.guidance)
        answers = ask(draw, given.samples, given.resolution, given.seed)
    except TandemError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for number, answer in enumerate(answers):
        print(f"{number:3d}  {answer.asked.caption:42s} {_verdict(answer)}")
    if given.grid is not None:
        grid(answers).save(given.grid)
    return 0 if passed(answers) else 1


def passed(answers: Sequence[Answer]) -> bool:
    """Print the shares of right answers and compare them with what is wanted."""
    shares = {
        part: sum(getattr(answer.asked, part) == getattr(answer.seen, part) for answer in answers) / len(answers)
        for part in ("colour", "shape", "background")
    }
    enough: bool = shares["colour"] >= COLOURS_WANTED and shares["shape"] >= SHAPES_WANTED
    print(
        f"{len(answers)} pictures: {shares['colour']:.1%} right colours (wanted {COLOURS_WANTED:.0%}), "
        f"{shares['shape']:.1%} right shapes (wanted {SHAPES_WANTED:.0%}), "
        f"{shares['background']:.1%} right backgrounds: {'passed' if enough else 'not passed'}"
    )
    return enough


def ask(draw: Draw, samples: int, resolution: int, seed: int) -> list[Answer]:
    """Different scenes as long as there are any, in all formats; every picture with a noise of its own."""
    shuffled = random.Random(seed).sample(scenes(), len(scenes()))
    orders = zip(itertools.cycle(shuffled), itertools.cycle(SIZES.values()), range(samples))
    answers = []
    for scene, size, number in orders:
        width, height = sample_size(size, resolution)
        picture = draw(scene.caption, width, height, seed * samples + number)
        answers.append(Answer(scene, look(picture), picture))
    return answers


def sample_size(size: tuple[int, int], resolution: int) -> tuple[int, int]:
    """A size of the same format with about resolution x resolution pixels, in multiples of 8."""
    shrink = resolution / math.sqrt(size[0] * size[1])
    return (round(size[0] * shrink / 8) * 8, round(size[1] * shrink / 8) * 8)


def look(picture: Image.Image) -> Scene:
    """What the picture shows, told from its pixels alone."""
    pixels = np.asarray(picture, np.float64)
    background = np.median(_frame(pixels), axis=0)
    distance = np.linalg.norm(pixels - background, axis=2)
    # The clearest twentieth is surely inside: the demo's shapes cover a twelfth of their pictures or more.
    colour = np.median(pixels[distance >= np.quantile(distance, 0.95)], axis=0)
    return Scene(
        shape=_nearest_shape(_coverage(pixels, background, colour)),
        colour=_nearest_colour(colour, COLOURS | BACKGROUNDS),
        background=_nearest_colour(background, COLOURS | BACKGROUNDS),
    )


def _frame(pixels: Pixels) -> Pixels:
    """The outermost pixels [N, 3]."""
    return np.concatenate([pixels[0], pixels[-1], pixels[1:-1, 0], pixels[1:-1, -1]])


def _coverage(pixels: Pixels, background: Pixels, colour: Pixels) -> Pixels:
    """How far each pixel lies on the way from background to colour, 0 to 1 [H, W]: undoes the drawing."""
    way = colour - background
    length = float(way @ way)
    return np.clip((pixels - background) @ way / max(length, 1.0), 0.0, 1.0)


def _nearest_shape(coverage: Pixels) -> str:
    """The shape that, drawn with the same area at the same centre of mass, overlaps best."""
    height, width = coverage.shape
    covered = max(float(coverage.sum()), 1.0)
    x = float(coverage.sum(axis=0) @ (np.arange(width) + 0.5)) / covered
    y = float(coverage.sum(axis=1) @ (np.arange(height) + 0.5)) / covered

    def overlap(shape: str) -> float:
        template = draw_coverage(shape, width, height, (x, y), math.sqrt(covered / area(shape)))
        wanted = np.asarray(template, np.float64) / 255
        return float(np.minimum(coverage, wanted).sum() / np.maximum(coverage, wanted).sum())

    return max(OUTLINES, key=overlap)


def _nearest_colour(colour: Pixels, palette: dict[str, Colour]) -> str:
    return min(palette, key=lambda name: float(np.linalg.norm(colour - np.array(palette[name]))))


def model_drawer(folder: Path, steps: int, guidance_scale: float) -> Draw:
    """Draws with the exported model, through the family's own load and sample."""
    from modules.families.family import SampleRequest
    from modules.families.pixel_diffusion import PixelDiffusion

    family = PixelDiffusion.load(TrainConfig(base_model=str(folder)))

    def draw(caption: str, width: int, height: int, seed: int) -> Image.Image:
        return family.sample(SampleRequest(caption, "", width, height, steps, guidance_scale, seed))

    return draw


def grid(answers: Sequence[Answer], columns: int = 8, cell: int = 160) -> Image.Image:
    """All pictures with their captions; what was seen instead stands in red below."""
    rows = math.ceil(len(answers) / columns)
    sheet = Image.new("RGB", (columns * cell, rows * (cell + 24)), (70, 50, 50))
    pen = ImageDraw.Draw(sheet)
    for number, answer in enumerate(answers):
        left, top = number % columns * cell, number // columns * (cell + 24)
        enlarge = (cell - 8) / max(answer.picture.size)
        size = (round(answer.picture.width * enlarge), round(answer.picture.height * enlarge))
        sheet.paste(answer.picture.resize(size, Image.Resampling.NEAREST), (left + 4, top + 4))
        words = f"{answer.asked.colour} {answer.asked.shape}, {answer.asked.background}"
        pen.text((left + 4, top + cell - 2), words, fill="white")
        pen.text((left + 4, top + cell + 9), _verdict(answer), fill=(255, 120, 120))
    return sheet


def _verdict(answer: Answer) -> str:
    wrong: Iterable[str] = (
        f"{part} seen as {getattr(answer.seen, part)}"
        for part in ("colour", "shape", "background")
        if getattr(answer.asked, part) != getattr(answer.seen, part)
    )
    return ", ".join(wrong)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how well a demo model follows its captions.")
    parser.add_argument("model_folder", type=Path, help="folder of a saved model, such as runs/NAME/model")
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1, help="another seed asks for other pictures")
    parser.add_argument("--grid", type=Path, help="write all pictures with their captions to this PNG file")
    preset = load_preset("demo")
    parser.add_argument("--resolution", type=int, default=preset.resolution)
    parser.add_argument("--steps", type=int, default=preset.samples[0].steps)
    parser.add_argument("--guidance", type=float, default=preset.samples[0].guidance_scale)
    given = parser.parse_args(arguments)
    if given.samples < 1:
        parser.error(f"--samples is {given.samples}; ask for at least 1 picture")
    return given


if __name__ == "__main__":
    sys.exit(main())
