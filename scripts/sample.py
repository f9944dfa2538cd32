"""Draw pictures with a model that Tandem saved: `python scripts/sample.py --model runs/NAME/model --prompt "..."`."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.own_python import require_packages

require_packages()

from pydantic import ValidationError

from modules.config import ConfigError, Sample, TandemError, TrainConfig, explain
from modules.run.amounts import BYTES, counted
from modules.run.exit_codes import INTERRUPTED


def main(arguments: list[str] | None = None) -> int:
    """Draw every prompt once and write PNG files that carry their settings; returns an exit code."""
    options = parser().parse_args(arguments)
    try:
        draw(options)
    except TandemError as error:
        print(f"No picture was drawn: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(
            f"No picture was drawn: {error.filename or options.out}: {error.strerror or error}",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return INTERRUPTED
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="sample.py", description="Draw pictures with a saved model.", allow_abbrev=False)
    top.add_argument("--model", required=True, metavar="FOLDER", help="a model folder, such as runs/NAME/model")
    top.add_argument("--base_model", help="of a LoRA or a word: where its base model is now, if it was moved")
    top.add_argument("--prompt", required=True, action="append", help="what to draw; give it several times for several")
    top.add_argument("--negative_prompt", default="", help="what to keep out")
    top.add_argument(
        "--out", default="samples", metavar="FOLDER", help="PNG files go here, beside earlier ones (default: samples)"
    )
    top.add_argument("--steps", type=int, default=20, help="steps per picture (default: 20)")
    top.add_argument("--guidance_scale", type=float, default=4.0, help="how closely to follow the prompt (default: 4)")
    top.add_argument("--width", type=int, help="pixels (default: the resolution the model was trained at)")
    top.add_argument("--height", type=int, help="pixels (default: the resolution the model was trained at)")
    top.add_argument("--seed", type=int, default=42, help="equal seeds draw equal pictures (default: 42)")
    top.add_argument("--count", type=int, default=1, help="pictures per prompt, with seeds counting up (default: 1)")
    return top


def draw(options: argparse.Namespace) -> None:
    """Load the model through its family and draw. Raises TandemError or OSError."""
    import torch

    from modules.checkpoint import config_of_saved_model
    from modules.families.family import family_class
    from modules.monitoring import grid, save_picture
    from modules.training.adapters import apply_adapter
    from modules.training.sampling import sample_requests

    if options.count < 1:
        raise ConfigError(f"--count is {options.count}; use 1 or more.")
    folder_of_model = model_folder(options.model)
    config = with_samples(with_base_model(config_of_saved_model(folder_of_model), options), options)
    kind = family_class(config.family)
    try:
        requests = sample_requests(config, kind.size_step)
    except ConfigError as error:
        raise ConfigError(re.sub(r"^samples\.\d+\.", "--", error.message), error.advice) from error
    try:
        if (on_hub := kind.on_hub(config)) is not None:
            on_hub.at_hand(tell_download)
        family = kind.load(config)
    except ConfigError as error:
        raise about_base_model(error, config, options) from error
    apply_adapter(family, config, folder_of_model)
    for remark in [*family.remarks([*options.prompt, options.negative_prompt]), *unsaid(config, options.prompt)]:
        print(f"Note: {remark}", file=sys.stderr)
    family.model.to("cuda" if torch.cuda.is_available() else "cpu")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    first, drawn = free_number(folder), []
    for number, request in enumerate(requests, first):
        picture = family.sample(request)
        file = folder / f"sample-{number:02d}.png"
        save_picture(picture, file, {**asdict(request), **family.sampling_facts(), "model": options.model})
        print(file)
        drawn.append((picture, request.prompt))
    if len(drawn) > 1:
        file = folder / f"grid-{first:02d}.png"
        save_picture(grid(drawn), file, {"prompt": "all samples"})
        print(file)


def free_number(folder: Path) -> int:
    """The first number after those of the pictures that are there."""
    names = (re.fullmatch(r"sample-(\d+)\.png", file.name) for file in folder.iterdir())
    return max((int(name[1]) + 1 for name in names if name), default=0)


def tell_download(done: int, total: int) -> None:
    """How far it is, in bytes, on the last line of standard error."""
    if total:
        end = "\n" if done >= total else ""
        print(f"\rdownloading: {counted(done, total, BYTES)}", end=end, file=sys.stderr, flush=True)


def model_folder(name: str) -> Path:
    """The folder that `--model` means. Raises ConfigError, with what to give instead, for what lies near it."""
    path = Path(name)
    inside = path / "model"
    if path.is_file():
        raise ConfigError(f"--model: {name!r} is a file.", f"Give the folder that Tandem saved it in, {path.parent}.")
    if (path / "tandem.json").is_file() or not path.is_dir():
        return path
    if (path / "config.json").is_file() and (path / "backup").is_dir():
        advice = f"Give its model folder, {inside}." if inside.is_dir() else "It has not saved a model yet."
        raise ConfigError(f"--model: {name!r} is the folder of a run.", advice)
    if (path / "progress.json").is_file():
        raise ConfigError(f"--model: {name!r} is a backup, from which a run goes on.", "Give runs/NAME/model.")
    if (path / "model_index.json").is_file():
        raise ConfigError(
            f"--model: {name!r} is a diffusers folder that Tandem did not write.",
            "Give a model folder such as runs/NAME/model; a base model is what --base_model means.",
        )
    return path


def with_base_model(config: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """With the base model that the command line names. Raises ConfigError where the model needs none."""
    if options.base_model is None:
        return config
    if config.method == "fine_tune":
        raise ConfigError(f"--base_model: {options.model!r} is a whole model, which needs none; leave it out.")
    if not options.base_model.strip():
        raise ConfigError("--base_model is empty.", "Give a folder, a .safetensors file or a hub name.")
    return config.model_copy(update={"base_model": options.base_model})


def about_base_model(error: ConfigError, config: TrainConfig, options: argparse.Namespace) -> ConfigError:
    """What cannot be loaded in the words of this command line: a model that was trained beside another needs that."""
    from modules.checkpoint import config_of_saved_model

    if not error.message.startswith("base_model"):
        return error
    if config.method == "fine_tune":
        return ConfigError(error.message.replace("base_model", "--model", 1), error.advice)
    before = config_of_saved_model(Path(options.model)).base_model
    where = f"{options.model} was trained on {before!r}: say with --base_model where that is now."
    if options.base_model is None:
        return ConfigError(error.message, f"{error.advice} {where}")
    advice = where if before is not None else f"{options.model} was trained without one: leave it out."
    return ConfigError(f"--{error.message}", advice)


def with_samples(config: TrainConfig, options: argparse.Namespace) -> TrainConfig:
    """With every prompt as often as is wished."""
    samples = tuple(
        checked_sample(options, prompt, options.seed + number)
        for prompt in options.prompt
        for number in range(options.count)
    )
    return config.model_copy(update={"samples": samples})


def unsaid(config: TrainConfig, prompts: list[str]) -> list[str]:
    """A learned word shows only where a prompt says it."""
    word = config.embedding_token
    without = [prompt for prompt in prompts if config.method == "embedding" and word not in prompt]
    return [f"the prompt {without[0]!r} does not say {word}, which is what was learned."] if without else []


def checked_sample(options: argparse.Namespace, prompt: str, seed: int) -> Sample:
    """The sample that the options describe. Raises ConfigError in the words of the config."""
    given = {
        "prompt": prompt,
        "negative_prompt": options.negative_prompt,
        "width": options.width,
        "height": options.height,
        "steps": options.steps,
        "guidance_scale": options.guidance_scale,
        "seed": seed,
    }
    try:
        return Sample.model_validate(given)
    except ValidationError as error:
        raise ConfigError.from_faults("The picture", explain(error, Sample)) from error


if __name__ == "__main__":
    sys.exit(main())
