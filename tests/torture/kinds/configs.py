"""Configs through the way of `--config`, and other trainers' settings through the importers."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path
from random import Random

import yaml

from modules import ROOT
from modules.config import TrainConfig, load_config, resolve_config, save_config
from modules.config.io.text_formats import write_yaml
from modules.importers import import_file
from modules.run.join.local_settings import shared_settings
from tests.torture.kind import Places
from tests.torture.mutations import data_changed, file_replaced, json_changed, json_text, text_changed

_FOREIGN = ROOT / "tests" / "importers" / "files"
_IMPORTED = (
    "ai_toolkit.yaml",
    "diffusion_pipe.toml",
    "kohya.toml",
    "kohya_gui.json",
    "onetrainer.json",
    "simple_tuner.json",
    "training_script.yaml",
)


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        places.seeds.mkdir(parents=True)
        image = {"path": "images", "caption_source": "txt", "repeats": 2.0, "name": "cats"}
        config = TrainConfig.model_validate(
            {
                "family": "stable_diffusion",
                "base_model": "owner/model",
                "concepts": [image, {"path": "others", "kind": "validation", "caption_lines": "first"}],
                "method": "lora",
                "parts": [{"part": "unet", "learning_rate": 1e-4}],
                "samples": [{"prompt": "a cat", "seed": 3}],
                "lora_targets": "to_q, to_k",
                "optimizer": {"name": "prodigy"},
                "processes_per_node": [2, 2],
                "num_nodes": 2,
                "master_addr": "10.0.0.1",
            }
        )
        for name in ("config.json", "config.yaml"):
            save_config(config, places.seeds / name)
        short = {"family": "demo", "learning_rate": 1e-4, "concepts": [{"path": "x"}], "backup_every": "500 steps"}
        (places.seeds / "short.yaml").write_text(write_yaml(short))
        foreign = shutil.copytree(_FOREIGN, places.seeds / "foreign")
        for name in (
            "img/10_sks cat",
            "img/2_dog",
            "reg/1_cat",
            "pictures/cat",
            "training_concepts",
            "training_samples",
        ):
            (foreign / name).mkdir(parents=True)
        shutil.copy(_FOREIGN / "onetrainer_concepts.json", foreign / "training_concepts" / "concepts.json")
        shutil.copy(_FOREIGN / "onetrainer_samples.json", foreign / "training_samples" / "samples.json")

    def make(self, draw: Random) -> None:
        case = self._places.case
        if draw.random() < 0.6:
            name = draw.choice(("config.json", "config.yaml", "short.yaml"))
            given = changed = case / f"config{Path(name).suffix}"
            shutil.copy(self._places.seeds / name, given)
        else:
            shutil.copytree(self._places.seeds / "foreign", case / "foreign")
            given = changed = case / "foreign" / draw.choice(_IMPORTED)
            if draw.random() < 0.3:  # a file that it may refer to
                changed = draw.choice(sorted(file for file in given.parent.rglob("*") if file.is_file()))
        (case / "given").write_text(str(given.relative_to(case)))
        self._change(changed, draw)

    def _change(self, file: Path, draw: Random) -> None:
        data = file.read_bytes()
        if draw.random() < 0.04:
            file_replaced(file, self._places.outside, draw)
        elif file.suffix == ".json":
            file.write_bytes(json_changed(data, draw))
        elif draw.random() < 0.6 and file.suffix in (".yaml", ".toml"):
            is_toml = file.suffix == ".toml"
            changed = data_changed(tomllib.loads(data.decode()) if is_toml else yaml.safe_load(data), draw)
            # JSON is nearly YAML, and its values are nearly those of TOML
            file.write_bytes(_toml(changed) if is_toml and isinstance(changed, dict) else json_text(changed))
        else:
            file.write_bytes(text_changed(data.decode(), draw))

    def read(self) -> str:
        given = self._places.case / (self._places.case / "given").read_text()
        if given.parent.name == "foreign":
            _check(import_file(given).config, given.with_name("again.json"))
            return ""
        config = load_config(given)
        assert resolve_config(str(given)) == config
        _check(config, given.with_name(f"again{given.suffix}"))
        return ""


def _check(config: TrainConfig, again: Path) -> None:
    """What was accepted can be written and read again, and be compared with another machine's."""
    save_config(config, again)
    assert load_config(again) == config, "it is another config after it was saved"
    shared_settings(config)


def _toml(data: dict[str, object]) -> bytes:
    return b"\n".join(json_text(name) + b" = " + json_text(value) for name, value in data.items())
