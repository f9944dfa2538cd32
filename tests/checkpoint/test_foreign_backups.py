"""A backup that somebody made or changed, with a manifest that fits: it is read, or one sentence says what is wrong."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.checkpoint import Backups, find_damage, read_backup, read_manifest
from modules.checkpoint.manage_backups import go_back_to
from modules.config import ResumeError, TrainConfig, dump
from modules.config.errors import TrainingError
from modules.distributed.file_transfer import _listed
from modules.run.folder.backup_list import list_backups
from modules.training.state.checkpoint_state import capture_state, restore_state
from modules.training.state.resume import check_unchanged
from tests.checkpoint.states import state_at
from tests.torture.kinds.backups import components

VALUES: tuple[object, ...] = (None, True, -1, 0, 2**70, 1.5, "", "x" * 5000, "../../x", [], [[]], {}, {"a": {"b": []}})


def seal(folder: Path) -> None:
    """Write the manifest anew, so that it fits the files."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for name in manifest["files"]:
        data = (folder / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def changed(data: object, draw: random.Random) -> object:
    """The data with one value replaced, added or removed somewhere."""
    if isinstance(data, dict) and data and draw.random() < 0.8:
        name = draw.choice(list(data))
        if draw.random() < 0.2:
            return {key: value for key, value in data.items() if key != name}
        return {**data, name: changed(data[name], draw)}
    if isinstance(data, list) and data and draw.random() < 0.8:
        at = draw.randrange(len(data))
        return [*data[:at], changed(data[at], draw), *data[at + 1 :]]
    return draw.choice(VALUES)


def mutate(file: Path, draw: random.Random) -> None:
    """Change a value of a JSON file, or bytes or the length of any file."""
    data = file.read_bytes()
    if file.suffix == ".json" and draw.random() < 0.7:
        file.write_text(json.dumps(changed(json.loads(data), draw)))
    elif draw.random() < 0.3:
        file.write_bytes(data[: draw.randrange(len(data))])
    else:
        mutant = bytearray(data)
        for _ in range(draw.randint(1, 8)):
            mutant[draw.randrange(min(len(mutant), 400))] = draw.randrange(256)
        file.write_bytes(bytes(mutant))


def fault_of(folder: Path) -> str:
    """What reading it says; nothing if it can be read. Any other exception fails the test."""
    try:
        read_backup(folder)
    except ResumeError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_mutated_backups_never_end_in_another_error(tmp_path: Path) -> None:
    good = Backups(tmp_path / "good", keep=1).write(state_at(4), '{"seed": 1}')
    draw = random.Random(5)
    refused = 0
    for number in range(300):
        folder = shutil.copytree(good, tmp_path / f"step-{number:06d}")
        mutate(folder / draw.choice(sorted(path.name for path in folder.iterdir())), draw)
        if draw.random() < 0.8:
            with suppress(ValueError, KeyError, TypeError, AttributeError, OSError):  # the manifest itself was changed
                seal(folder)
        fault = fault_of(folder)
        refused += bool(fault)
        assert not fault or (len(fault) < 1500 and str(folder) in fault)
        shutil.rmtree(folder)
    assert 100 < refused < 300


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ('{"version": 1, "number": Infinity, "files": {}}', "the number Infinity"),
        ('{"version": 1, "number": 1, "files": {}}', "config.json is not listed"),
        ('{"version": 1, "number": "1", "files": {}}', "'number'"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_manifest_is_skipped_with_its_reason(tmp_path: Path, content: str, fault: str) -> None:
    backups = Backups(tmp_path, keep=9)
    good = backups.write(state_at(1), "{}")
    bad = backups.write(state_at(2), "{}")
    (bad / "manifest.json").write_text(content)
    newest, damaged = backups.newest_valid()
    assert newest == good
    assert len(damaged) == 1
    assert fault in damaged[0]


@pytest.mark.parametrize("kind", ["link", "file"])
def test_what_is_no_folder_is_no_backup(tmp_path: Path, kind: str) -> None:
    backups = Backups(tmp_path / "backup", keep=9)
    good = backups.write(state_at(1), "{}")
    elsewhere = Backups(tmp_path / "other", keep=9)
    foreign = [elsewhere.write(state_at(step), "{}") for step in (1, 2)][-1]
    place = good.with_name(foreign.name)
    if kind == "link":
        place.symlink_to(foreign)
    else:
        place.write_text("")
    newest, faults = backups.newest_valid()
    assert newest == good
    assert len(faults) == 1
    assert "is a link to another folder" in faults[0] if kind == "link" else "is not a folder" in faults[0]
    (listed,) = (each for each in list_backups(good.parent) if each.folder == place)
    assert (listed.number, listed.fault, listed.size) == (0, faults[0], 0)
    manifest = (foreign / "manifest.json").read_bytes()
    assert go_back_to(good.parent, foreign) == place
    assert not place.is_symlink()
    assert (foreign / "manifest.json").read_bytes() == manifest
    assert backups.newest_valid() == (place, [])


def test_a_dangling_link_does_not_keep_a_backup_from_being_written(tmp_path: Path) -> None:
    (tmp_path / "step-000001").symlink_to(tmp_path / "gone")
    assert find_damage(Backups(tmp_path, keep=1).write(state_at(1), "{}")) is None


def test_a_manifest_that_names_a_file_elsewhere(tmp_path: Path) -> None:
    folder = Backups(tmp_path, keep=1).write(state_at(1), "{}")
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["../../secret"] = {"size": 0, "sha256": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert "../../secret is listed" in str(find_damage(folder))
    with pytest.raises(ResumeError, match="is listed"):
        read_manifest(folder)


@pytest.mark.parametrize("name", ["/etc/passwd", "../x", "weights.safetensors/../../x", "a.py", ""])
def test_another_rank_cannot_name_the_files_that_it_sends(name: str) -> None:
    with pytest.raises(TrainingError, match="rank 3 sends a file that is not expected"):
        _listed(json.dumps({name: 5}).encode(), {"weights.safetensors"}, 3)


@pytest.mark.parametrize("text", [b"\xff", b"[]", b'{"w": -1}', b'{"w": 1e999}', b'{"w": "5"}', b"[" * 50_000])
def test_a_list_of_files_that_is_none(text: bytes) -> None:
    with pytest.raises(TrainingError, match="rank 3's list of files"):
        _listed(text, {"w"}, 3)


@pytest.mark.parametrize("shape", [None, (1,), (5, 4)])
def test_an_average_that_does_not_fit_is_refused(shape: tuple[int, ...] | None) -> None:
    parts = components(TrainConfig.model_validate({"family": "pixel_diffusion", "ema": True}))
    state = capture_state(parts, state_at(1).position)
    assert state.ema is not None
    del state.ema["0.weight"]
    if shape is not None:
        state.ema["0.weight"] = torch.zeros(shape)
    with pytest.raises(ResumeError, match="does not fit this config"):
        restore_state(state, parts)


@pytest.mark.parametrize(("kind", "said"), [("weights", "weights"), ("ema", r"averaged weights \(EMA\)")])
def test_weights_of_a_backup_that_are_not_finite_are_named(kind: str, said: str) -> None:
    parts = components(TrainConfig.model_validate({"family": "pixel_diffusion", "ema": True}))
    state = capture_state(parts, state_at(1).position)
    tensors = {name: tensor.clone() for name, tensor in getattr(state, kind).items()}
    tensors["0.weight"].view(-1)[0] = torch.nan
    changed: dict[str, Any] = {kind: tensors}
    with pytest.raises(ResumeError, match=rf"the {said} of the backup are not finite .* in '0\.weight'.*earlier"):
        restore_state(replace(state, **changed), parts)


@pytest.mark.parametrize("value", [True, 3, "x", [3], [{"part": 3}]])
def test_parts_in_the_config_of_a_backup_may_be_anything(value: object) -> None:
    config = TrainConfig.model_validate({"family": "pixel_diffusion"})
    state = replace(state_at(1), config={**dump(config), "parts": value})
    with pytest.raises(ResumeError, match="parts in the config of the backup is damaged"):
        check_unchanged(config, state)
