"""Tags by WD14 taggers: model.onnx and selected_tags.csv, as SmilingWolf publishes them.

Images are prepared and tags chosen as in the published demonstration (the space wd-tagger of SmilingWolf).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import subprocess
import sys
import weakref
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.config import ConfigError
from modules.diffusion.hub.one_model import TAGGER_MODEL, TAGGER_TAGS
from modules.files import FileFault, file_size, printable, read_text

RATING, GENERAL, CHARACTER = "9", "0", "4"  # categories of Danbooru
_PIP: Final = "Install it: .venv/bin/python -m pip install onnxruntime (with an NVIDIA GPU: onnxruntime-gpu)"
_PROCESS: Final = Path(__file__).with_name("tagger_process.py")
_CSV_LIMIT: Final = 64 << 20  # bytes
_MOST_SIDE: Final = 2048  # pixels; published taggers have 448
_MOST_AT_ONCE: Final = 64  # images, for which memory is taken even if there is one; published taggers take any number
_MOST_LOADING_SECONDS: Final = 300
_MOST_SECONDS: Final = 120  # for an image, which published taggers are made to tag in seconds
# faces, in which an underscore is no blank
_FACES: Final = frozenset(
    [
        "0_0",
        "(o)_(o)",
        "+_+",
        "+_-",
        "._.",
        "<o>_<o>",
        "<|>_<|>",
        "=_=",
        ">_<",
        "3_3",
        "6_9",
        ">_o",
        "@_@",
        "^_^",
        "o_o",
        "u_u",
        "x_x",
        "|_|",
        "||_||",
    ]
)


@dataclass(frozen=True)
class TagChoice:
    """Which tags are used, and how they are written; the thresholds are probabilities."""

    threshold: float = 0.35
    character_threshold: float = 0.85
    exclude: Collection[str] = ()
    keep_underscores: bool = False
    with_rating: bool = False

    def tags(self, known: Sequence[tuple[str, str]], probabilities: NDArray[np.float32]) -> list[str]:
        """The tags of one image, from (name, category) of all tags and their probabilities [tags].

        The rating first, if it is wanted, then characters and general tags, the most probable first.
        """
        order = np.argsort(-probabilities, kind="stable")
        chosen: dict[str, list[str]] = {RATING: [], CHARACTER: [], GENERAL: []}
        least = {CHARACTER: self.character_threshold, GENERAL: self.threshold}
        for number in order.tolist():
            name, category = known[number]
            if category in least and probabilities[number] > least[category]:
                chosen[category].append(name)
            elif category == RATING and self.with_rating and not chosen[RATING]:
                chosen[RATING].append(name)
        unwanted = {_plain(name) for name in self.exclude}
        found = [name for names in chosen.values() for name in names if _plain(name) not in unwanted]
        return [name if self.keep_underscores or name in _FACES else name.replace("_", " ") for name in found]


class Tagger:
    """A WD14 tagger."""

    longest: int | None = None  # scaled as in the demonstration, from the whole image

    def __init__(self, folder: Path, choice: TagChoice, *, on_gpu: bool, name: str) -> None:
        """Raises ConfigError if the model cannot be loaded, or onnxruntime is not installed."""
        if find_spec("onnxruntime") is None:
            raise ConfigError("Taggers need the package onnxruntime, which is not installed.", _PIP)
        self._choice, self._name = choice, name
        self._known = read_tags(folder / TAGGER_TAGS)
        try:
            file_size(folder / TAGGER_MODEL)
            limits = (str(_MOST_LOADING_SECONDS), str(_MOST_SECONDS))
            self._process = subprocess.Popen(
                [sys.executable, "-P", _PROCESS, folder / TAGGER_MODEL, *limits, "gpu" if on_gpu else "cpu"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # on which it says that the time is over
                env=os.environ | {"ORT_DISABLE_TELEMETRY": "1"},  # it would tell Microsoft of each session
                start_new_session=True,  # Ctrl-C in a terminal is handled by this process
            )
            weakref.finalize(self, _end, self._process)
            shapes = self._answer(f"{_MOST_LOADING_SECONDS} s to be loaded")
        except (RuntimeError, OSError, FileFault) as error:
            raise ConfigError(
                f"--model: {TAGGER_MODEL} of {name!r} cannot be loaded ({printable(error, 300)}).",
                "Copy or download it again, or choose another model.",
            ) from error
        given, made = shapes["input"], shapes["output"]
        self._side = _side_of(given, name)
        self._batch = given[0] if isinstance(given[0], int) else None
        if made and isinstance(made[-1], int) and made[-1] != len(self._known):
            raise ConfigError(
                f"--model: {name!r} has {made[-1]} outputs and {len(self._known)} tags in {TAGGER_TAGS}.",
                "Both files must be of the same model.",
            )

    def __call__(self, images: Sequence[Image.Image]) -> list[str]:
        """The tags of each image, separated by commas. Raises ConfigError for a model that gives no numbers."""
        batch = np.stack([prepared(image, self._side) for image in images])
        size = self._batch or len(batch)
        rows = np.concatenate([self._probabilities(batch[at : at + size], size) for at in range(0, len(batch), size)])
        if not np.isfinite(rows).all():
            raise ConfigError(
                f"--model: {self._name!r} gives probabilities that are not finite (NaN or infinity): its weights are "
                "damaged.",
                "Copy or download it again, or choose another model.",
            )
        return [", ".join(self._choice.tags(self._known, row)) for row in rows.astype(np.float32)]

    def _probabilities(self, images: NDArray[np.float32], size: int) -> NDArray[Any]:
        """[images, tags]; the model is given `size` images, black ones after those.

        Raises RuntimeError, and ConfigError if it takes too long or gives something else.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        filled = np.pad(images, [(0, size - len(images)), (0, 0), (0, 0), (0, 0)])
        with suppress(OSError):  # it has ended, which the answer says
            self._process.stdin.write(f"{json.dumps({'shape': filled.shape})}\n".encode() + filled.tobytes())
            self._process.stdin.flush()
        limit = f"{_MOST_SECONDS} s for an image"
        shape = self._answer(limit)["shape"]
        if shape != [size, len(self._known)]:
            raise ConfigError(
                f"--model: {self._name!r} gives numbers of the shape {shape} for {size} images and {len(self._known)} "
                "tags.",
                "Choose another model.",
            )
        made = self._process.stdout.read(4 * math.prod(shape))
        if len(made) < 4 * math.prod(shape):
            raise self._ended(limit)
        return np.frombuffer(made, np.float32).reshape(shape)[: len(images)]

    def _answer(self, limit: str) -> dict[str, Any]:
        """What the process says. Raises RuntimeError if the model fails, ConfigError if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise self._ended(limit)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _ended(self, limit: str) -> ConfigError:
        """Why the process has ended."""
        code = self._process.wait()
        why = f"takes more than {limit}" if code == 1 else f"ends onnxruntime (exit code {code})"
        return ConfigError(f"--model: {self._name!r} {why}.", "Choose another model.")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def prepared(image: Image.Image, side: int) -> NDArray[np.float32]:
    """BGR [side, side, 3] from 0 to 255: padded with white to a square, then scaled."""
    longest = max(image.size)
    square = Image.new("RGB", (longest, longest), (255, 255, 255))
    square.paste(image, ((longest - image.width) // 2, (longest - image.height) // 2))
    if longest != side:
        square = square.resize((side, side), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(square, dtype=np.float32)[:, :, ::-1])


def read_tags(file: Path) -> list[tuple[str, str]]:
    """Name and category of each tag, in the order of the model's outputs. Raises ConfigError."""
    try:
        rows = list(csv.DictReader(io.StringIO(read_text(file, _CSV_LIMIT), newline="")))
        known = [(row["name"], row["category"]) for row in rows]
    except (OSError, FileFault, csv.Error, KeyError) as error:
        reason = f"has no column {error}" if isinstance(error, KeyError) else str(error)
        raise ConfigError(f"--model: {str(file)!r} is no list of tags: it {reason}.") from None
    if not any(category in (GENERAL, CHARACTER) for _, category in known):
        raise ConfigError(f"--model: {str(file)!r} has no tags of the categories {GENERAL} and {CHARACTER}.")
    return known


def _side_of(shape: Sequence[int | str | None], name: str) -> int:
    side = shape[1] if len(shape) == 4 and shape[3] == 3 and shape[1] == shape[2] else None
    batch = shape[0] if shape and isinstance(shape[0], int) else 1
    if not isinstance(side, int) or not 0 < side <= _MOST_SIDE or not 0 < batch <= _MOST_AT_ONCE:
        raise ConfigError(
            f"--model: {name!r} takes input of the shape {list(shape)}.",
            f"Taggers here take at most {_MOST_AT_ONCE} images as [batch, side, side, 3] with at most {_MOST_SIDE} "
            "pixels a side.",
        )
    return side


def _plain(tag: str) -> str:
    return tag.strip().replace("_", " ").casefold()
