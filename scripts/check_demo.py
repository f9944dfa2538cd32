"""Measure how well a demo model follows its captions: python scripts/check_demo.py MODEL_FOLDER [--grid FILE].

Generates images from captions, recognises colour and shape from the pixels, and compares them with the caption.
Exit code 0 if at least 90 % of the colours and 75 % of the shapes are right, else 1.
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

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from modules.config import TandemError, TrainConfig, load_preset
from scripts.demo_shapes import BACKGROUNDS, COLOURS, OUTLINES, SIZES, Colour, Scene, area, draw_coverage, scenes

MIN_COLOURS = 0.90
MIN_SHAPES = 0.75

Pixels = NDArray[np.float64]
Generate = Callable[[str, int, int, int], Image.Image]  # caption, width, height, seed


@dataclass(frozen=True)
class Result:
    """A generated image, the scene in its caption and the scene recognised in its pixels."""

    expected: Scene
    recognised: Scene
    image: Image.Image


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each image, then the accuracies; returns an exit code."""
    given = _arguments(arguments)
    try:
        generate = load_generator(given.model_folder, given.steps, given.guidance)
        results = evaluate(generate, given.samples, given.resolution, given.seed)
    except TandemError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    for number, result in enumerate(results):
        print(f"{number:3d}  {result.expected.caption:42s} {_verdict(result)}")
    if given.grid is not None:
        grid(results).save(given.grid)
    return 0 if passed(results) else 1


def passed(results: Sequence[Result]) -> bool:
    """Print the accuracies; whether they reach the minimum."""
    shares = {
        part: sum(getattr(result.expected, part) == getattr(result.recognised, part) for result in results)
        / len(results)
        for part in ("colour", "shape", "background")
    }
    enough: bool = shares["colour"] >= MIN_COLOURS and shares["shape"] >= MIN_SHAPES
    print(
        f"{len(results)} images: {shares['colour']:.1%} right colours (wanted {MIN_COLOURS:.0%}), "
        f"{shares['shape']:.1%} right shapes (wanted {MIN_SHAPES:.0%}), "
        f"{shares['background']:.1%} right backgrounds: {'passed' if enough else 'not passed'}"
    )
    return enough


def evaluate(generate: Generate, samples: int, resolution: int, seed: int) -> list[Result]:
    """Generate and recognise `samples` images: every scene before any repeats, all aspect ratios."""
    shuffled = random.Random(seed).sample(scenes(), len(scenes()))
    requests = zip(itertools.cycle(shuffled), itertools.cycle(SIZES.values()), range(samples))
    results = []
    for scene, size, number in requests:
        width, height = sample_size(size, resolution)
        image = generate(scene.caption, width, height, seed * samples + number)
        results.append(Result(scene, recognise(image), image))
    return results


def sample_size(size: tuple[int, int], resolution: int) -> tuple[int, int]:
    """(width, height) of the same aspect ratio with about resolution x resolution pixels, in multiples of 8."""
    shrink = resolution / math.sqrt(size[0] * size[1])
    return (round(size[0] * shrink / 8) * 8, round(size[1] * shrink / 8) * 8)


def recognise(image: Image.Image) -> Scene:
    """The scene an image shows, from its pixels alone."""
    pixels = np.asarray(image, np.float64)
    background = np.median(_frame(pixels), axis=0)
    distance = np.linalg.norm(pixels - background, axis=2)
    # The most distant 5 % are certainly inside the shape: the demo's shapes cover a twelfth of the image or more.
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
    """Coverage [H, W] in 0 to 1: how far each pixel [H, W, 3] is from the background colour towards the shape's."""
    direction = colour - background
    squared_length = float(direction @ direction)
    return np.clip((pixels - background) @ direction / max(squared_length, 1.0), 0.0, 1.0)


def _nearest_shape(coverage: Pixels) -> str:
    """The shape that overlaps best (IoU) when drawn with the same area and centre of mass."""
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


def load_generator(folder: Path, steps: int, guidance_scale: float) -> Generate:
    """A function that generates an image with the saved model, through its family."""
    from modules.families._family import SampleRequest
    from modules.families.pixel_diffusion import PixelDiffusion

    family = PixelDiffusion.load(TrainConfig(base_model=str(folder)))

    def generate(caption: str, width: int, height: int, seed: int) -> Image.Image:
        return family.sample(SampleRequest(caption, "", width, height, steps, guidance_scale, seed))

    return generate


def grid(results: Sequence[Result], columns: int = 8, cell: int = 160) -> Image.Image:
    """All images with their captions; mistakes below in red."""
    rows = math.ceil(len(results) / columns)
    sheet = Image.new("RGB", (columns * cell, rows * (cell + 24)), (70, 50, 50))
    pen = ImageDraw.Draw(sheet)
    for number, result in enumerate(results):
        left, top = number % columns * cell, number // columns * (cell + 24)
        enlarge = (cell - 8) / max(result.image.size)
        size = (round(result.image.width * enlarge), round(result.image.height * enlarge))
        sheet.paste(result.image.resize(size, Image.Resampling.NEAREST), (left + 4, top + 4))
        words = f"{result.expected.colour} {result.expected.shape}, {result.expected.background}"
        pen.text((left + 4, top + cell - 2), words, fill="white")
        pen.text((left + 4, top + cell + 9), _verdict(result), fill=(255, 120, 120))
    return sheet


def _verdict(result: Result) -> str:
    wrong: Iterable[str] = (
        f"{part} is {getattr(result.recognised, part)}"
        for part in ("colour", "shape", "background")
        if getattr(result.expected, part) != getattr(result.recognised, part)
    )
    return ", ".join(wrong)


def _arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how well a demo model follows its captions.")
    parser.add_argument("model_folder", type=Path, help="folder of a saved model, e.g. runs/NAME/model")
    parser.add_argument("--samples", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1, help="another seed generates other images")
    parser.add_argument("--grid", type=Path, help="write all images with their captions to this PNG file")
    preset = load_preset("demo")
    parser.add_argument("--resolution", type=int, default=preset.resolution)
    parser.add_argument("--steps", type=int, default=preset.samples[0].steps)
    parser.add_argument("--guidance", type=float, default=preset.samples[0].guidance_scale)
    given = parser.parse_args(arguments)
    if given.samples < 1:
        parser.error(f"--samples is {given.samples}; use at least 1")
    return given


if __name__ == "__main__":
    sys.exit(main())
