"""A training script with the flags people know, on Tandem's engine: to be copied and changed.

    python examples/train_cli.py --data pictures --val-data pictures_val --model cifar_resnet20 --image-size 32 \\
        --epochs 20 --batch-size 64 --lr 0.1 --use-amp --use-ema --distributed --world-size 2 --backend gloo
    python examples/train_cli.py --resume --epochs 40

The data is a folder with one folder of images for each class, or a CIFAR archive; the model the network of a
classifier, or a Python file with your own model and data. Any other setting: `--set NAME=VALUE` (docs/settings.md).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tandem import TandemError, resolve_config, save_config
from tandem.commands import main as tandem

FLAGS = {  # flag -> the setting that its value is for, and the kind of value
    "epochs": ("epochs", int), "batch-size": ("batch_size", int), "lr": ("learning_rate", float),
    "image-size": ("resolution", int), "seed": ("seed", int), "workers": ("loader_workers", int),
    "world-size": ("world_size", int), "backend": ("distributed_backend", str), "output-dir": ("runs_dir", str),
    "name": ("run_name", str),
}  # fmt: skip
SWITCHES = {
    "use-amp": ("precision=bf16",),
    "use-ema": ("ema=true",),
    "distributed": ("enable_multi_gpu=true", "training_mode=distributed"),
}


def main(arguments: list[str] | None = None) -> int:
    """Translate the flags into settings and train; the exit codes are those of scripts/train.py."""
    options = parser().parse_args(arguments)
    trust = ["--trust_code"] if options.trust_code else []
    if options.resume is not None:  # the settings of that run, and those given now
        given = [part for setting in settings(options) for part in ("--set", setting)]
        return tandem(["train", "--resume", options.resume, *given, *trust])
    given = settings(options)
    if not any(setting.startswith(("concepts", "family=")) for setting in given):
        print(
            "--data is missing: a folder with one folder of images for each class (see --help).",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "config.json")
        try:
            save_config(resolve_config(None, ["family=classifier", *given]), file)
        except TandemError as error:
            print(f"Training did not start: {error}", file=sys.stderr)
            return error.exit_code
        return tandem(["train", "--config", str(file), *trust])


def settings(options: argparse.Namespace) -> list[str]:
    """NAME=VALUE for each flag that was given."""
    flags = {flag.replace("-", "_"): name for flag, (name, _) in FLAGS.items()}
    found = [f"{name}={value}" for flag, name in flags.items() if (value := getattr(options, flag)) is not None]
    found += [each for flag, given in SWITCHES.items() if getattr(options, flag.replace("-", "_")) for each in given]
    folders = {"train": options.data, "validation": options.val_data}
    if concepts := [{"path": path, "kind": kind} for kind, path in folders.items() if path is not None]:
        found.append(f"concepts={json.dumps(concepts)}")
    if options.val_data is not None:
        found.append("validate_every=1 epoch")
    if options.model is not None:
        is_file = options.model.endswith(".py")
        found.append(f"family={options.model}" if is_file else f"family_options.network={options.model}")
    return [*found, *options.set]


def parser() -> argparse.ArgumentParser:
    """The flags."""
    top = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    top.add_argument("--data", metavar="FOLDER", help="one folder of images for each class, or a CIFAR archive")
    top.add_argument("--val-data", metavar="FOLDER", help="the same for validation, after each epoch")
    top.add_argument("--model", metavar="NAME|FILE.py", help="a classifier's network, or your own model and data")
    for flag, (name, kind) in FLAGS.items():
        top.add_argument(f"--{flag}", type=kind, metavar="X", help=f"the setting {name}")
    for flag, changed in SWITCHES.items():
        top.add_argument(f"--{flag}", action="store_true", help=f"the settings {', '.join(changed)}")
    top.add_argument("--resume", nargs="?", const="latest", metavar="latest|PATH", help="continue a run exactly")
    top.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting")
    top.add_argument("--trust-code", action="store_true", help="allow the Python file that --model names")
    return top


if __name__ == "__main__":
    sys.exit(main())
