"""What OneTrainer does with each preset that it ships, and what each becomes here.

Facts of Nerogar/OneTrainer at the commit below: the settings of a preset once the window has loaded it
(modules/ui/BaseTopBarView.py, change_optimizer), one row of a table for each. Its files are not here: each row is
written as a preset of the same settings. With a checkout, PYTEST_PEERS=FOLDER (which contains OneTrainer), the shipped
files themselves are imported and compared with the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from modules.config import Interval
from modules.importers import ImportResult, import_file

COMMIT: Final = "23df3832e8f213d64c337e39f9365ba46e99fed0"
TABLE: Final = Path(__file__).parent / "files/presets_of_onetrainer.txt"
TYPES: Final = {
    "f32": "FLOAT_32", "f16": "FLOAT_16", "b16": "BFLOAT_16", "f8": "FLOAT_8", "i8": "INT_W8A8", "n4": "NFLOAT_4",
}  # fmt: skip
PRECISIONS: Final = {"f32": "fp32", "f16": "fp16", "b16": "bf16"}
WEIGHTS: Final = {**PRECISIONS, "f8": "fp8", "i8": "int8", "n4": "nf4"}
FORMATS: Final = {
    "OT": "ORIGINAL_TRANSFORMER", "OS": "ORIGINAL_SINGLE_FILE", "DL": "DIFFUSERS_LORA", "KL": "KOHYA_LORA",
    "CL": "COMFY_LORA", "LS": "LEGACY_SAFETENSORS", "S": "SAFETENSORS", "D": "DIFFUSERS",
}  # fmt: skip
# The network's linear layers and convolutions that have one of these in their names; of a preset without a filter the
# window adds that of the model (modules/modelSetup/Base*Setup.py, LAYER_PRESETS).
FILTERS: Final = {
    "chroma": "attn,ff.net,proj_mlp", "ernie": "self_attention,mlp", "anima": "attn1,attn2,ff", "krea2": "attn,ff",
    "ideogram": "attention,feed_forward", "qwen": "attn,img_mlp,txt_mlp",
    "z-image": "^(?=.*attention)(?!.*refiner).*,^(?=.*feed_forward)(?!.*refiner).*",
}  # fmt: skip
FAMILIES: Final = {
    "CHROMA_1": "chroma", "ERNIE": "ernie_image", "FLUX_2": "flux2", "FLUX_DEV_1": "flux", "KREA_2": "krea2",
    "QWEN": "qwen_image", "SD_3": "stable_diffusion_3", "Z_IMAGE": "z_image",
    **dict.fromkeys(("SD_15", "SD_15_INPAINTING", "SD_20_INPAINTING", "SD_21"), "stable_diffusion"),
    **dict.fromkeys(("SD_XL_10_BASE", "SD_XL_10_BASE_INPAINTING"), "stable_diffusion_xl"),
}  # fmt: skip
METHODS: Final = {"tune": "fine_tune", "lora": "lora", "emb": "embedding"}
ENCODERS: Final = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
LEVELS: Final = {"u": "UNIFORM", "l": "LOGIT_NORMAL", "p": "INVERTED_PARABOLA"}


@dataclass(frozen=True)
class Preset:
    """A row."""

    name: str
    model_type: str
    method: str
    rate: float
    batch: int
    side: int
    run: str
    network: str
    offload: float
    encoders: tuple[str, ...]
    layers: str
    levels: str
    format: str
    more: Mapping[str, str]

    @property
    def section(self) -> str:
        """Of the network's settings."""
        if self.model_type.startswith(("WUERSTCHEN", "STABLE_CASCADE")):
            return "prior"
        return "unet" if self.model_type.startswith(("SD_1", "SD_2", "SD_X")) else "transformer"

    @property
    def is_offloaded_lora(self) -> bool:
        """Whether blocks stay in host memory, which Tandem does under adapters."""
        return self.method == "lora" and self.offload > 0


def presets() -> list[Preset]:
    return [_preset(line) for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


def _preset(line: str) -> Preset:
    name, kind, method, rate, batch, side, run, network, offload, encoders, *rest = map(str.strip, line.split("|"))
    layers, levels, form, more = (*rest, "")[:4]
    return Preset(
        name, kind, method, float(rate), int(batch), int(side), run, network, float(offload),
        tuple(encoders.split(",")), layers, levels, form,
        {word.partition("=")[0]: word.partition("=")[2] for word in more.split()},
    )  # fmt: skip


def written(preset: Preset) -> dict[str, object]:
    """Settings that say the same as the shipped file."""
    network = {"weight_dtype": TYPES[preset.network], "offload_fraction": preset.offload}
    if "deturbo" in preset.more:
        network["model_name"] = "https://example.org/deturbo.safetensors"
    data: dict[str, object] = {
        "model_type": preset.model_type.replace("SD_", "STABLE_DIFFUSION_"), "base_model_name": "a/b",
        "training_method": {"tune": "FINE_TUNE", "lora": "LORA", "emb": "EMBEDDING"}[preset.method],
        "learning_rate": preset.rate, "batch_size": preset.batch, "resolution": str(preset.side),
        "train_dtype": TYPES[preset.run], "output_model_format": FORMATS[preset.format], preset.section: network,
        "output_dtype": TYPES[preset.more.get("saved", "f32")], "timestep_distribution": LEVELS[preset.levels[0]],
        "concepts": [], "samples": [],
    }  # fmt: skip
    for name, encoder in zip(ENCODERS, preset.encoders, strict=False):
        data[name] = {"train": encoder[0] != "-", "weight_dtype": TYPES[encoder.lstrip("-")]}
    if preset.levels == "p":
        data["noising_weight"] = 7.7
    if "*" in preset.levels:
        data["dynamic_timestep_shifting"] = True
    if preset.layers == "(attn-mlp)":
        data["layer_filter_preset"] = "attn-mlp"
    elif preset.layers != "-":
        data["layer_filter"] = FILTERS.get(preset.layers, preset.layers)
        data["layer_filter_regex"] = preset.layers == "z-image"
    if {"fused", "adafactor"} & set(preset.more):
        data["optimizer"] = {"optimizer": "ADAFACTOR"}
        data["optimizer_defaults"] = {"ADAFACTOR": {"fused_back_pass": "fused" in preset.more}}
    if "masked" in preset.more:
        data |= {"masked_training": True, "normalize_masked_area_loss": True}
    if "max" in preset.more:
        data["max_noising_strength"] = float(preset.more["max"])
    if "P2" in preset.more:
        data |= {"loss_weight_fn": "P2", "loss_weight_strength": 1.0}
    if "warmup" in preset.more:
        data["learning_rate_warmup_steps"] = int(preset.more["warmup"])
    return {
        **data, "compile": "compile" in preset.more, "latent_caching": "uncached" not in preset.more,
        "epochs": int(preset.more.get("epochs", 100)),
    }  # fmt: skip


def expected(preset: Preset) -> dict[str, object]:
    """What OneTrainer does, in Tandem's settings: its defaults where the table has no column."""
    is_fused, is_lora = "fused" in preset.more, preset.method == "lora"
    return {
        "family": FAMILIES.get(preset.model_type, preset.model_type.lower()), "method": METHODS[preset.method],
        "learning_rate": preset.rate, "lr_scaling": "none", "scheduler": "constant",
        "warmup_steps": int(preset.more.get("warmup", 200)), "epochs": int(preset.more.get("epochs", 100)),
        "max_steps": None, "batch_size": preset.batch, "gradient_accumulation_steps": 1, "resolution": preset.side,
        "precision": PRECISIONS[preset.run], "ema": False, "gradient_checkpointing": True, "caption_dropout": 0.0,
        "save_dtype": PRECISIONS[preset.more.get("saved", "f32")], "cache_latents": "uncached" not in preset.more,
        "compile": "compile" in preset.more and not preset.is_offloaded_lora,
        "masked_training": "masked" in preset.more,
        "optimizer.name": "adafactor" if {"fused", "adafactor"} & set(preset.more) else "adamw",
        "optimizer.weight_decay": 0.0 if {"fused", "adafactor"} & set(preset.more) else 0.01,
        "max_grad_norm": None if is_fused else 1.0, "fused_backward": is_fused, "stochastic_rounding": is_fused,
        "block_offload": preset.offload if is_lora else 0.0,
        **(lora(preset) if is_lora else {}),
        **({"save_single_file": preset.format != "D"} if preset.method == "tune" else {}),
        **(parts(preset) if preset.model_type in FAMILIES else {}),
        **(levels(preset) if preset.model_type in FAMILIES else {}),
    }  # fmt: skip


def lora(preset: Preset) -> dict[str, object]:
    patterns = FILTERS.get(preset.layers, preset.layers).replace("ff.net", r"ff\.net")
    targets = {"-": "all", "(attn-mlp)": "onetrainer"}.get(preset.layers, patterns)  # "attentions", and text encoders
    layouts = "diffusers" if preset.format == "DL" else "kohya"
    return {
        "lora_algorithm": "lora", "lora_rank": 16, "lora_alpha": 1.0, "lora_dropout": 0.0, "lora_targets": targets,
        "lora_layouts": layouts,
    }  # fmt: skip


def parts(preset: Preset) -> dict[str, object]:
    """Which submodules are trained, until when, and the format of frozen weights; those of UNets have encoders."""
    is_run = preset.method == "tune"  # which keeps all weights in the run's precision, or in fp32 if they are trained
    weights = "run" if is_run and preset.network != "f32" else WEIGHTS[preset.network]
    found: list[tuple[str, bool, str, Interval]] = [
        (preset.section, preset.method != "emb", weights, Interval.never()),
    ]
    large = preset.encoders[-1].lstrip("-")
    if preset.section == "transformer":
        quantized = WEIGHTS[large] if large in ("f8", "n4") else "run"
        return {"parts": found, "text_encoder_weights": quantized}
    for name, encoder in zip(ENCODERS, preset.encoders, strict=False):
        is_trained = encoder[0] != "-"
        kept = WEIGHTS[encoder.lstrip("-")]
        stops = is_trained and preset.method != "emb"
        end = Interval(30, "epochs") if stops else Interval.never()
        found.append((name, is_trained, "run" if is_run and kept != "fp32" else kept, end))
    return {"parts": found}


def levels(preset: Preset) -> dict[str, object]:
    """Of logit_normal: mean 0 and spread 1; of the parabola: the same spread of log(t / (1 - t))."""
    if preset.section == "unet":
        return {"max_timestep": float(preset.more.get("max", 1.0))}
    shift: dict[str, object] = {"timestep_shift": "static", "shift": 1.0}
    return {
        "timestep_distribution": "logit_normal", "logit_mean": 0.0, "logit_std": 1.183 if preset.levels == "p" else 1.0,
        **({"timestep_shift": "model"} if "*" in preset.levels else shift),
    }  # fmt: skip


def compare(preset: Preset, found: ImportResult) -> None:
    """Field by field; no setting is in two of the report's lists, and little is not imported."""
    config = found.config
    wrong = {}
    for name, value in expected(preset).items():
        if name == "parts":
            actual: object = [(part.part, part.train, part.weights, part.stop_after) for part in config.parts]
        elif hasattr(config, name):
            actual = getattr(config, name)
        elif name.startswith("optimizer."):
            actual = getattr(config.optimizer, name.removeprefix("optimizer."))
        else:
            default = "run" if name == "text_encoder_weights" else 1.0 if name == "max_timestep" else None
            actual = config.family_options.get(name, default)
        if actual != value:
            wrong[name] = (actual, value)
    assert not wrong, "imported, and what OneTrainer does"
    taken = _names(found, "imported", "changed")
    left = _names(found, "not_imported")
    assert not taken & left
    if preset.model_type in FAMILIES:
        assert left <= _MAY_BE_LEFT, "these may be left, with a reason"


_MAY_BE_LEFT: Final = {
    "concept_file_name", "sample_definition_file_name", "weight_dtype", "attention_mechanism", "compile",
    "layer_filter_preset", "layer_filter", "layer_filter_regex", "transformer.offload_fraction",
    "text_encoder.offload_fraction", "quantization.layer_filter", "quantization.layer_filter_preset",
    "unmasked_probability", "unet.weight_dtype", "text_encoder.weight_dtype", "text_encoder_2.weight_dtype",
    "vae.weight_dtype",
}  # fmt: skip


def _names(found: ImportResult, *lists: str) -> set[str]:
    entries = [entry for name in lists for entry in getattr(found.report, name)]
    return {name for entry in entries for name in entry.source.split(", ")}


@pytest.mark.parametrize("preset", presets(), ids=lambda preset: preset.name)
def test_presets(tmp_path: Path, preset: Preset) -> None:
    (tmp_path / "preset.json").write_text(json.dumps(written(preset)), encoding="utf-8")
    compare(preset, import_file(tmp_path / "preset.json"))


@pytest.mark.skipif("PYTEST_PEERS" not in os.environ, reason="PYTEST_PEERS names no folder of checkouts")
def test_shipped_presets() -> None:
    folder = Path(os.environ["PYTEST_PEERS"]) / "OneTrainer/training_presets"
    rows = {preset.name: preset for preset in presets()}
    files = {f"{file.parent.name}/{file.stem.removeprefix('#')}": file for file in folder.glob("*/#*.json")}
    assert set(files) == set(rows), f"of commit {COMMIT}"
    for name, file in files.items():
        compare(rows[name], import_file(file))
