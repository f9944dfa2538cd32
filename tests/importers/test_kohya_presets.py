"""What kohya's sd-scripts do with each preset of its GUI, and what each becomes here.

Facts of bmaltais/kohya_ss at 45088f0 (presets; kohya_gui/lora_gui.py and finetune_gui.py pass them on) and of
kohya-ss/sd-scripts at 48d368f, one row of a table for each preset; the files are not here. With a checkout,
PYTEST_PEERS=FOLDER (which contains kohya_ss), the shipped files themselves are compared with the rows.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Final

import pytest

from modules.importers import ImportResult, import_file

TABLE: Final = Path(__file__).parent / "files/presets_of_kohya_ss.txt"
FAMILIES: Final = {
    "xl": "stable_diffusion_xl", "sd": "stable_diffusion", "flux": "flux", "sd3": "stable_diffusion_3",
}  # fmt: skip
SWITCHES: Final = {"xl": {"sdxl": True}, "sd": {}, "flux": {"flux1_checkbox": True}, "sd3": {"sd3_checkbox": True}}
LYCORIS: Final = ("LoKr", "LoHa", "LoCon", "iA3")
OPTIMIZERS: Final = {
    "AdamW": "adamw", "AdamW8bit": "adamw", "PagedAdamW8bit": "adamw", "Adafactor": "adafactor", "Lion": "lion",
    "Prodigy": "prodigy", "DAdaptAdam": "prodigy",
}  # fmt: skip
EXTRA: Final = {
    "unet_only": "--network_train_unet_only", "torch_schedule": "--lr_scheduler_type CosineAnnealingLR",
    "unclipped": "--max_grad_norm=0",
}  # fmt: skip
ROWS: Final = {
    cells[0]: [*cells, ""][:18]
    for line in TABLE.read_text(encoding="utf-8").splitlines()
    if not line.startswith("#") and (cells := [cell.strip() for cell in line.split("|")])
}


def written(row: list[str]) -> dict[str, object]:
    """Settings that say the same as the shipped file."""
    _, model, kind, rates, schedule, warmup, length, batch, parts, dim, conv, optimizer, precision, size, *rest = row
    gamma, offset, dropout, more = rest
    rate, unet, text = map(float, rates.split("/"))
    epoch, epochs, steps = map(int, length.split("/"))
    data: dict[str, object] = {
        **SWITCHES[model], "learning_rate": rate, "lr_scheduler": schedule, "lr_warmup": float(warmup),
        "epoch": epoch or None, "max_train_epochs": epochs or "", "max_train_steps": steps or "",
        "train_batch_size": int(batch), "gradient_accumulation_steps": int(parts), "optimizer": optimizer,
        "mixed_precision": precision.strip("-"),
        "max_resolution": size.strip("-"), "min_snr_gamma": float(gamma), "noise_offset": float(offset),
        "noise_offset_type": "Multires" if "multires" in more else "Original", "caption_dropout_rate": float(dropout),
        "gradient_checkpointing": "checkpointing" in more, "train_text_encoder": "text" in more.split(),
        "debiased_estimation_loss": "debiased" in more, "factor": 6 if "factor" in more else -1,
        "additional_parameters": " ".join(text for word, text in EXTRA.items() if word in more), "model_list": "custom",
    }  # fmt: skip
    if optimizer == "Adafactor" and "relative" not in more:
        data["optimizer_args"] = "scale_parameter=False relative_step=False warmup_init=False"
    if kind != "-":
        (rank, alpha), (conv_rank, conv_alpha) = (map(float, pair.split("/")) for pair in (dim, conv))
        data |= {
            "LoRA_type": f"LyCORIS/{kind}" if kind in LYCORIS else kind, "unet_lr": unet, "text_encoder_lr": text,
            "network_dim": rank, "network_alpha": alpha, "conv_dim": conv_rank, "conv_alpha": conv_alpha,
        }  # fmt: skip
    return data


def expected(row: list[str]) -> dict[str, object]:
    """What the scripts do, in Tandem's settings."""
    _, model, kind, rates, schedule, warmup, length, batch, parts, dim, conv, optimizer, precision, size, *rest = row
    gamma, offset, dropout, more = rest
    rate, _, text = map(float, rates.split("/"))
    epoch, epochs, steps = map(int, length.split("/"))
    count = epochs or (0 if steps else epoch)  # max_train_epochs overrides steps, which the GUI calculates otherwise
    is_flow = model in ("flux", "sd3")
    found: dict[str, object] = {
        "family": FAMILIES[model], "method": "fine_tune" if kind == "-" else "lora",
        "learning_rate": 0.01 if "relative" in more else rate, "lr_scaling": "none", "epochs": count or 10_000,
        "max_steps": None if count else steps or 1600, "batch_size": int(batch), "ema": False,
        "gradient_accumulation_steps": int(parts), "optimizer.name": OPTIMIZERS[optimizer],
        "warmup_fraction": 0.0 if "relative" in more else float(warmup) / 100,
        "scheduler": "custom" if "torch" in more else schedule if schedule.startswith("cosine") else "constant",
        "gradient_checkpointing": "checkpointing" in more, "caption_dropout": float(dropout),
        "max_grad_norm": None if "unclipped" in more else 1.0,
        "offset_noise": 0.0 if is_flow or "multires" in more else float(offset),
        "loss_weighting": "none" if is_flow or gamma == "0" else "debiased" if "debiased" in more else "min_snr",
    }  # fmt: skip
    if precision != "-":
        found["precision"] = precision
    if size != "-":
        found["resolution"] = round(math.sqrt(math.prod(map(int, size.split(",")))) / 64) * 64
    if kind != "-":
        rank, alpha = map(float, dim.split("/"))
        conv_rank, conv_alpha = map(float, conv.split("/"))
        found |= {
            "lora_algorithm": kind.lower() if kind in ("LoKr", "LoHa") else "lora",
            "lora_rank": min(rank, 4096) if kind == "LoKr" else rank, "lora_alpha": alpha,
            "lora_targets": "all" if kind in LYCORIS else "blocks" if model == "flux" else "kohya",
        }  # fmt: skip
        if kind in LYCORIS and conv_rank > 1:
            most = min(conv_rank, 4096) if kind == "LoKr" else conv_rank
            found |= {"lora_conv_rank": most, "lora_conv_alpha": conv_alpha}
        if not is_flow:
            is_trained = text > 0 and "unet_only" not in more
            own = text if is_trained and "relative" not in more else None
            found["encoders"] = [(is_trained, own)] * (2 if model == "xl" else 1)
    return found


def compare(row: list[str], found: ImportResult) -> None:
    config = found.config
    actual = {
        "optimizer.name": config.optimizer.name,
        "encoders": [(part.train, part.learning_rate) for part in config.parts if part.part.startswith("text_encoder")],
        "offset_noise": config.family_options.get("offset_noise", 0.0),
        "loss_weighting": config.family_options.get("loss_weighting", "none"),
    }
    wrong = {
        name: (each, value)
        for name, value in expected(row).items()
        if (each := actual[name] if name in actual else getattr(config, name)) != value
    }
    assert not wrong, "imported, and what sd-scripts do"


@pytest.mark.parametrize("name", list(ROWS))
def test_presets(tmp_path: Path, name: str) -> None:
    (tmp_path / "preset.json").write_text(json.dumps(written(ROWS[name])), encoding="utf-8")
    compare(ROWS[name], import_file(tmp_path / "preset.json"))


@pytest.mark.skipif("PYTEST_PEERS" not in os.environ, reason="PYTEST_PEERS names no folder of checkouts")
def test_shipped_presets() -> None:
    folder = Path(os.environ["PYTEST_PEERS"]) / "kohya_ss/presets"
    files = {f"{file.parent.name}/{file.stem}": file for file in folder.glob("*/*.json")}
    assert set(files) == set(ROWS)
    for name, file in files.items():
        compare(ROWS[name], import_file(file))
