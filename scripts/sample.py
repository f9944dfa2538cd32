"""Draw pictures with a model that Tandem saved: `python scripts/sample.py --model runs/NAME/model --prompt "..."`."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from scripts.own_python import require_packages

require_packages()

from pydantic import ValidationError

from modules.config import ConfigError, Sample, TandemError, explain


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
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(prog="sample.py", description="Draw pictures with a saved model.", allow_abbrev=False)
    top.add_argument("--model", required=True, metavar="FOLDER", help="a model folder, such as runs/NAME/model")
    top.add_argument("--base_model", help="of a LoRA or a word: where its base model is now, if it was moved")
    top.add_argument("--prompt", required=True, action="append", help="what to draw; give it several times for several")
    top.add_argument("--negative_prompt", default="", help="what to keep out")
    top.add_argument("--out", default="samples", metavar="FOLDER", help="where the PNG files go (default: samples)")
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
    config = config_of_saved_model(Path(options.model))
    samples = tuple(
        checked_sample(options, prompt, options.seed + number)
        for prompt in options.prompt
        for number in range(options.count)
    )
    config = config.model_copy(update={"samples": samples})
    if options.base_model is not None:
        if config.method == "fine_tune":
            raise ConfigError(f"--base_model: {options.model!r} is a whole model, which needs none; leave it out.")
        config = config.model_copy(update={"base_model": options.base_model})
    requests = sample_requests(config, family_class(config.family).size_step)
    family = family_class(config.family).load(config)
    apply_adapter(family, config, Path(options.model))
    family.model.to("cuda" if torch.cuda.is_available() else "cpu")
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for number, request in enumerate(requests):
        picture = family.sample(request)
        file = folder / f"sample-{number:02d}.png"
        save_picture(picture, file, {**asdict(request), **family.sampling_facts(), "model": options.model})
        print(file)
        drawn.append((picture, request.prompt))
    if len(drawn) > 1:
        save_picture(grid(drawn), folder / "grid.png", {"prompt": "all samples"})
        print(folder / "grid.png")


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
