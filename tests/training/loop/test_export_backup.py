"""scripts/backup.py export: a backup becomes the model that the run has saved, or would have, at its step."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from modules.run.folder.saved_models import saved_models
from scripts import backup
from tests.conftest import draw_images
from tests.pair_jobs import ADAPTERS
from tests.runs import Run, same_tensors, tiny_config, train_alone
from tests.torture.kinds.backups import seal

CASES: dict[str, dict[str, object]] = {
    "ema": {"ema": True, "family_options": {"batch_norm": True}, "save_dtype": "fp16"},
    "schedule-free": {"optimizer": {"name": "schedule_free_adamw"}},
    "bf16": {"precision": "bf16", "stochastic_rounding": True, "ema": True},
    "lora": {**ADAPTERS["lora"], "precision": "fp32", "ema": True},
    "dora": ADAPTERS["dora"],
    "embedding": ADAPTERS["embedding"],
}


def trained(place: Path, **settings: object) -> Run:
    """A run that saves the model of step 2, with a backup of it; its images are gone."""
    (place / "discs").mkdir()
    draw_images(place / "discs", 4)
    given = {**settings, "max_steps": 3, "save_every": "2 steps", "backup_every": "2 steps"}
    code, run = train_alone(tiny_config(place / "discs", place, **given))
    assert code == 0, run.failure(0)
    shutil.rmtree(place / "discs")
    shutil.rmtree(place / "cache")
    return run


@pytest.mark.parametrize("case", CASES)
def test_it_is_what_the_run_has_saved(tmp_path: Path, case: str) -> None:
    run = trained(tmp_path, **CASES[case])
    out = tmp_path / "out"
    assert backup.main(["export", str(run.folder.path), "2", "--out", str(out), "--trust_code"]) == 0
    (saved,) = saved_models(run.folder)
    files = sorted(path.name for path in saved.folder.glob("*.safetensors"))
    assert sorted(path.name for path in out.glob("*.safetensors")) == files
    for name in files:
        assert same_tensors(load_file(out / name), load_file(saved.folder / name)), name
        with safe_open(out / name, "pt") as exported, safe_open(saved.folder / name, "pt") as own:
            wrote, was = exported.metadata() or {}, own.metadata() or {}
        differ = {key for key in was if was[key] != wrote.get(key)}
        assert differ <= {"modelspec.date", "ss_training_started_at", "ss_num_train_images", "ss_bucket_info"}, differ
        assert wrote.keys() <= was.keys()
    infos = [json.loads((each / "tandem.json").read_text()) for each in (out, saved.folder)]
    assert infos[0]["step"] == infos[1]["step"] == 2
    assert infos[0]["adapter"] == infos[1]["adapter"]


def test_it_goes_beside_the_models_of_other_steps_and_replaces_none_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained(tmp_path, **CASES["schedule-free"])
    folder = str(run.folder.path)
    assert backup.main(["export", folder, "3", "--trust_code"]) == 0
    assert [each.step for each in saved_models(run.folder)] == [2, 3]
    assert same_tensors(
        load_file(run.folder.saved_dir(3) / "weights.safetensors"),
        load_file(run.folder.model_dir / "weights.safetensors"),
    )
    assert backup.main(["export", folder, "3", "--trust_code"]) == 2
    assert "saves/step-000003 exists" in capsys.readouterr().err
    assert backup.main(["export", folder, "3", "--overwrite"]) == 0
    file = run.folder.backup_dir / "step-000003" / "weights.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    assert backup.main(["export", folder, "3", "--out", str(tmp_path / "out")]) == 2
    assert "the checksum of weights.safetensors does not match" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    place = run.folder.backup_dir / "step-000002"
    whole = json.loads((place / "optimizer.json").read_text())
    foreign: list[list[dict[str, object]]] = [[], [{}], [{"betas": "x"}], [{"betas": [0.0, 0.9]}]]
    for groups in foreign:  # of somebody else, with checksums that fit
        (place / "optimizer.json").write_text(json.dumps({**whole, "groups": groups}))
        seal(place)
        assert backup.main(["export", folder, "2", "--out", str(tmp_path / "out")]) == 2
        assert "holds another model (its optimizer has no betas)" in capsys.readouterr().err
    weights, state = (load_file(place / f"{name}.safetensors") for name in ("weights", "optimizer"))
    name = next(name for name in weights if f"{name}/z" in state)
    save_file(state | {f"{name}/z": state[f"{name}/z"][:1]}, place / "optimizer.safetensors")
    (place / "optimizer.json").write_text(json.dumps(whole))
    seal(place)
    assert backup.main(["export", folder, "2", "--out", str(tmp_path / "out")]) == 2
    assert "/z' has another shape or type than the weight" in capsys.readouterr().err
