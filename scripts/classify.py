"""Classify images with a trained classifier: `python scripts/classify.py runs/NAME IMAGE...`."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.common import add_trust_code, add_version, allow_code, prepare_program

prepare_program()

from modules.config import ConfigError, TandemError, TrainConfig
from modules.config.file_access import set_file_access
from modules.config.sections.concept import IMAGE_SUFFIXES
from modules.files import printable, spreadsheet_cell
from modules.run.console import echo, warn
from modules.run.exit_codes import FAILED, FINISHED, INTERRUPTED, NO_DATA

if TYPE_CHECKING:
    from modules.families.classifier import Classifier
    from scripts.predictions import Prediction

EXAMPLES = """examples:
  the class of each image of a folder, and how sure the model is:
    python scripts/classify.py runs/cats-and-dogs holiday/
  the three most likely classes, as a table for a spreadsheet:
    python scripts/classify.py runs/cats-and-dogs/model a.jpg b.png --top 3 --format csv --out classes.csv

exit codes: 0 all images were classified, 2 a mistake in the command or no such model, 3 the result cannot be
written, 4 some images cannot be read (the others are classified)
"""


def main(arguments: list[str] | None = None) -> int:
    """Print the class of each image; returns an exit code."""
    options = parser().parse_args(arguments)
    try:
        set_file_access()
        return classify(options)
    except TandemError as error:
        warn(f"No image was classified: {error}")
        return error.exit_code
    except OSError as error:
        warn(f"The result cannot be written: {printable(error.filename or options.out)}: {error.strerror or error}.")
        return FAILED
    except KeyboardInterrupt:
        warn("Stopped.")
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        description="Classify images with a trained classifier.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("model", metavar="RUN_OR_MODEL", help="the folder of a run, or its model folder, runs/NAME/model")
    top.add_argument("images", metavar="IMAGE", nargs="+", help="image files, and folders of images")
    top.add_argument("--top", type=int, default=1, metavar="K", help="the K most likely classes (default: 1)")
    top.add_argument("--format", choices=("text", "csv", "json"), default="text", help="of the result (default: text)")
    top.add_argument("--out", metavar="FILE", help="write the result to this file instead of printing it")
    top.add_argument("--batch_size", type=int, default=32, help="images classified at once (default: 32)")
    add_trust_code(top)
    add_version(top)
    return top


def classify(options: argparse.Namespace) -> int:
    """Load the model, classify and write. Raises TandemError, and OSError if the result cannot be written."""
    from scripts.predictions import predict

    for name in ("top", "batch_size"):
        if getattr(options, name) < 1:
            raise ConfigError(f"--{name} is {getattr(options, name)}; use 1 or more.")
    files = list(image_files(options.images))
    if options.out is not None and Path(options.out).is_dir():
        raise ConfigError(f"--out: {options.out!r} is a folder; name a file.")
    config = classifier_config(Path(options.model))
    allow_code(config, trust=options.trust_code, trains=False)
    family = load_classifier(config)
    count = min(options.top, len(family.classes))
    predictions: list[Prediction] = []
    remaining = iter(files)
    while chunk := list(islice(remaining, options.batch_size)):
        predictions += predict(family, chunk, config, type(family).size_step, count)
    for each in predictions:
        if each.error:
            warn(f"{printable(each.file)} is not classified: {each.error}.")
    write(rendered(predictions, options.format), options.out)
    unread = sum(bool(each.error) for each in predictions)
    return NO_DATA if unread else FINISHED


def image_files(given: Sequence[str]) -> Iterator[str]:
    """The files, and those of folders in alphabetical order. Raises ConfigError for what does not exist."""
    for name in given:
        path = Path(name)
        if not path.is_dir():
            if not path.exists():
                raise ConfigError(f"There is no image {name!r}.")
            yield name
            continue
        found = [
            str(file)
            for file in sorted(path.rglob("*"))
            if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith(".") and file.is_file()
        ]
        if not found:
            raise ConfigError(f"The folder {name!r} holds no images ({', '.join(sorted(IMAGE_SUFFIXES))}).")
        yield from found


def classifier_config(given: Path) -> TrainConfig:
    """The config of the model in `given` or in the run that it is. Raises ConfigError."""
    from modules.checkpoint import read_model_config

    is_run = (given / "config.json").is_file() and not (given / "tandem.json").is_file()
    model = given / "model" if is_run or (given / "model/tandem.json").is_file() else given
    if is_run and not model.is_dir():
        raise ConfigError(
            f"The run {str(given)!r} has not saved a model yet.", "It does so at its end, or on Save now."
        )
    return read_model_config(model)


def load_classifier(config: TrainConfig) -> Classifier:
    """On the GPU if there is one, ready to classify.

    Raises ConfigError if it is another kind of model, TrainingError if its weights are not finite.
    """
    import torch

    from modules.families._by_name import family_class
    from modules.families.classifier import Classifier
    from modules.training.step.finite_weights import check_weights

    kind = family_class(config.family)
    if not issubclass(kind, Classifier):
        raise ConfigError(f"The model is of the family {config.family!r}, which does not classify images.")
    family = kind.load(config)
    family.model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    check_weights(config, family, family.model)
    return family


def rendered(predictions: Sequence[Prediction], form: str) -> str:
    """The result as text of the format."""
    if form == "json":
        return json.dumps([each.as_json() for each in predictions], indent=2) + "\n"
    if form == "text":
        return "".join(
            f"{printable(each.file)}: "
            + ", ".join(f"{printable(name)} {100 * share:.1f} %" for name, share in each.classes)
            + "\n"
            for each in predictions
            if not each.error
        )
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    count = max((len(each.classes) for each in predictions), default=1) or 1
    numbers = ["", *(f"_{number}" for number in range(2, count + 1))]
    writer.writerow(["file", *(f"{name}{number}" for number in numbers for name in ("class", "probability"))])
    for each in predictions:
        if not each.error:
            row = [value for name, share in each.classes for value in (_cell(name), f"{share:.6f}")]
            writer.writerow([_cell(each.file), *row])
    return table.getvalue()


def _cell(text: str) -> str:
    return spreadsheet_cell(printable(text, mask=False))


def write(text: str, out: str | None) -> None:
    """To the file, or to standard output."""
    if out is None:
        if text:
            echo(text.removesuffix("\n"))
    else:
        Path(out).write_text(text, encoding="utf-8", newline="")


if __name__ == "__main__":
    sys.exit(main())
