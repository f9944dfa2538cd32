"""Tags by WD14 taggers: model.onnx and selected_tags.csv, as SmilingWolf publishes them.

Images are prepared and tags chosen as in the published demonstration (the space wd-tagger of SmilingWolf).
"""

from __future__ import annotations

import csv
import io
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray
from PIL import Image

from modules.config import ConfigError
from modules.diffusion.hub.one_model import TAGGER_MODEL, TAGGER_TAGS
from modules.diffusion.library_errors import first_line
from modules.files import FileFault, file_size, printable, read_text

RATING, GENERAL, CHARACTER = "9", "0", "4"  # categories of Danbooru
_PIP: Final = "Install it: .venv/bin/python -m pip install onnxruntime (with an NVIDIA GPU: onnxruntime-gpu)"
_CSV_LIMIT: Final = 64 << 20  # bytes
_MOST_SIDE: Final = 2048  # pixels; published taggers have 448
_MOST_AT_ONCE: Final = 64  # images, for which memory is taken even if there is one; published taggers take any number
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
        try:
            import onnxruntime
        except ImportError:
            raise ConfigError("Taggers need the package onnxruntime, which is not installed.", _PIP) from None
        _limit_memory()
        self._choice, self._name, self._run_options = choice, name, onnxruntime.RunOptions
        self._known = read_tags(folder / TAGGER_TAGS)
        wanted = ["CUDAExecutionProvider", "CPUExecutionProvider"] if on_gpu else ["CPUExecutionProvider"]
        providers = [each for each in wanted if each in onnxruntime.get_available_providers()]
        try:
            file_size(folder / TAGGER_MODEL)
            options = onnxruntime.SessionOptions()
            options.add_session_config_entry("session.use_env_allocators", "1")  # those of _limit_memory
            options.log_severity_level = 3  # errors only
            self._session: Any = onnxruntime.InferenceSession(folder / TAGGER_MODEL, options, providers=providers)
        except Exception as error:  # onnxruntime has an exception of its own for each status
            raise ConfigError(
                f"--model: {TAGGER_MODEL} of {name!r} cannot be loaded ({printable(first_line(error), 300)}).",
                "Copy or download it again, or choose another model.",
            ) from error
        given, made = self._session.get_inputs()[0], self._session.get_outputs()[0]
        self._input, self._output = given.name, made.name
        self._side = _side_of(given.shape, name)
        self._batch = given.shape[0] if isinstance(given.shape[0], int) else None
        if made.shape[-1] != len(self._known) and isinstance(made.shape[-1], int):
            raise ConfigError(
                f"--model: {name!r} has {made.shape[-1]} outputs and {len(self._known)} tags in {TAGGER_TAGS}.",
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

        Raises RuntimeError, and ConfigError if it takes too long: its loops may have no end.
        """
        filled = np.pad(images, [(0, size - len(images)), (0, 0), (0, 0), (0, 0)])
        options = self._run_options()
        options.log_severity_level = 4  # errors are raised
        timer = threading.Timer(_MOST_SECONDS * size, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            made: NDArray[Any] = self._session.run([self._output], {self._input: filled}, options)[0]
        except Exception as error:  # as above; also for too little memory
            if options.terminate:
                raise ConfigError(
                    f"--model: {self._name!r} takes more than {_MOST_SECONDS} s for an image.", "Choose another model."
                ) from error
            raise RuntimeError(first_line(error)) from error
        finally:
            timer.cancel()
        return made[: len(images)]


@lru_cache(maxsize=1)
def _limit_memory() -> None:
    """Let all sessions of this process together take no more than the memory that is free now: the system would grant
    more, and end the process, or another one, when it is used."""
    import onnxruntime

    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    limits = onnxruntime.OrtArenaCfg({"max_mem": psutil.virtual_memory().available})
    onnxruntime.create_and_register_allocator(memory, limits)


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
