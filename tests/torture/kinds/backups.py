"""Backups of all versions whose manifest fits the mutated files, loaded into a model and its optimizer."""

from __future__ import annotations

import hashlib
import json
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modules.checkpoint import (
    Backups,
    FileEntry,
    Position,
    Shard,
    ShardRows,
    TrainingState,
    find_damage,
    open_backup,
    read_backup,
    write_part,
    write_texts,
)
from modules.checkpoint.hashed_files import HashedFile
from modules.config import TrainConfig, dump
from modules.config.io.text_formats import write_json
from modules.data.loading.data_record import DataTable, dump_record, resumed_order
from modules.data.loading.order import Order, TrainingRows, Turn
from modules.data.rng import hash_uint64
from modules.distributed import Weights
from modules.training.optim.ema import Ema
from modules.training.optim.optimizers import GuardedStep, build_optimizer
from modules.training.state.checkpoint_state import capture_state, plan_for, restore_state
from modules.training.state.resume import check_unchanged
from tests.torture.kind import Places
from tests.torture.mutations import file_changed, file_replaced, json_changed, safetensors_changed

PARTS = 2


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        config = TrainConfig.model_validate({"family": "pixel_diffusion", "ema": True, "optimizer": {"name": "adamw"}})
        parts = components(config)
        for weight in parts.weights.local.values():
            weight.grad = torch.ones_like(weight)
        parts.guarded_step.optimizer.step()
        position = Position(8, 1, 0, 41, 8, 2, 0.1, 0.2, 0.5, best_step=1, base={"model": "float32:0123"})
        state = capture_state(parts, position)  # without data, as of 0.2.0
        self._config = config
        backups, config_json = Backups(places.seeds, keep=9), write_json(dump(config))
        self._good = [backups.write(state, config_json)]
        state = replace(state, position=replace(position, step=2))
        self._good.append(backups.write_files(2, lambda folder: _in_parts(folder, state, config_json), PARTS))
        data = dump_record(_table(), _order(None), samples_seen=8)
        self._good.append(backups.write(replace(state, position=replace(position, step=3), data=data), config_json))
        for good in self._good:
            self._resume(good)  # imports what is imported only then

    def make(self, draw: Random) -> None:
        good = draw.choice(self._good)
        folder = Path(shutil.copytree(good, self._places.case / good.name))
        names = sorted(file.name for file in folder.iterdir())
        for name in draw.choices(names, k=draw.choice((1, 1, 1, 2))):
            if draw.random() < 0.05:
                file_replaced(folder / name, self._places.outside, draw)
            else:
                file_changed(folder / name, json_changed if name.endswith(".json") else safetensors_changed, draw)
        if draw.random() < 0.9:
            seal(folder)

    def read(self) -> str:
        (folder,) = self._places.case.iterdir()
        newest, damaged = Backups(self._places.case, keep=1).newest_valid()
        assert (newest is None) == (find_damage(folder) is not None)
        if newest is None and damaged:
            return damaged[0]
        self._resume(folder)
        return ""

    def _resume(self, folder: Path) -> None:
        state = read_backup(folder)
        for name, tensor in open_backup(folder).weights.items():
            if tensor.shape:  # as a rank that needs only some rows
                rows = max(1, len(state.weights[name]) // 2)
                assert torch.equal(tensor[:rows], state.weights[name][:rows]) or state.weights[name].isnan().any()
        check_unchanged(self._config, state)
        plan = plan_for(self._config, 2, open_backup(folder))
        if plan.former is not None:
            order, _ = resumed_order(plan.former, _table(), _order)
            assert len(order.epoch(plan.former.epoch)) <= order.epoch_size
            order.progress(state.position.samples_seen).after(1)
        parts = components(self._config)
        shapes = {name: weight.shape for name, weight in parts.weights.local.items()}
        restore_state(state, parts)
        for name, weight in parts.weights.local.items():
            assert weight.shape == shapes[name] == parts.ema.average[name].shape
            weight.grad = torch.ones_like(weight)
        parts.guarded_step.apply()


def _in_parts(folder: Path, state: TrainingState, config_json: str) -> dict[str, FileEntry]:
    """What several ranks write, each a share of the rows of every matrix, and the first one all the rest."""
    files = write_texts(folder, state, config_json)
    assert state.ema is not None
    kinds = {"weights": state.weights, "ema": state.ema, "optimizer": state.optimizer.tensors}
    for index in range(PARTS):
        own: dict[str, dict[str, Tensor]] = {}
        rows: dict[str, dict[str, ShardRows]] = {}
        for kind, tensors in kinds.items():
            own[kind], rows[kind] = {}, {}
            for name, tensor in tensors.items():
                if tensor.dim() > 1:
                    first, last = (len(tensor) * each // PARTS for each in (index, index + 1))
                    own[kind][name], rows[kind][name] = tensor[first:last], ShardRows(first, len(tensor))
                elif index == 0:
                    own[kind][name] = tensor
        optimizer = replace(state.optimizer, tensors=own["optimizer"])
        part = replace(state, weights=own["weights"], ema=own["ema"], optimizer=optimizer)
        files |= write_part(part, Shard(index, PARTS, rows), lambda name: HashedFile(folder / name))
    return files


def _table() -> DataTable:
    names = [f"{number}.png".encode() for number in range(41)]
    identity = hash_uint64(np.arange(41))
    trained = np.ones(41, dtype=np.bool_)
    return DataTable.of(identity, identity, trained, b"\0".join(names), is_read=True, captions=lambda: names)


def _order(turn: Turn | None) -> Order:
    none = np.zeros(41, dtype=np.int32)
    return Order(TrainingRows(np.arange(41), none, none, [1.0], [1.0], _table().identity), 0, 8, turn=turn)


def components(config: TrainConfig) -> Any:
    """A small model with what of a trainer's components a backup holds."""
    torch.manual_seed(0)
    weights = Weights(nn.Sequential(nn.Linear(3, 5), nn.Conv2d(2, 2, 3)))
    optimizer = build_optimizer(list(weights.local.values()), config)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    return SimpleNamespace(
        config=config,
        weights=weights,
        ema=Ema(weights.local, config.ema_decay, weights.swap),
        guarded_step=GuardedStep(optimizer, weights, scaler, config.max_grad_norm),
        fused_backward=None,
        precision=SimpleNamespace(scaler=scaler),
        data=SimpleNamespace(record=lambda samples_seen: None),
    )


def seal(folder: Path) -> None:
    """Write sizes and checksums of the present files into the manifest, if that still is one."""
    file = folder / "manifest.json"
    if not file.is_file() or file.is_symlink() or file.stat().st_size > 1 << 20:
        return
    with suppress(ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError):
        manifest = json.loads((folder / "manifest.json").read_text())
        for name in list(manifest["files"]):
            file = folder / name
            if file.is_file() and file.stat().st_size < 1 << 20 and not file.is_symlink():
                data = file.read_bytes()
                manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        (folder / "manifest.json").write_text(json.dumps(manifest))
