"""The model of a backup as files for other programs, without training and, but for classes, without images."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from modules.checkpoint import StoredState, open_backup
from modules.checkpoint.formats import file_metadata
from modules.config import ResumeError, TrainConfig, total_steps
from modules.distributed import RankGroup, Weights, single_process
from modules.distributed.weights import FullTensor
from modules.families._family import Family
from modules.files import printable
from modules.monitoring.report_protocol import SilentReport
from modules.training.actions.save import ModelExport, run_metadata, write_model
from modules.training.data.dataset import resolve_data
from modules.training.device.precision import Precision, weights_dtype
from modules.training.loop.setup import fetch_base_model
from modules.training.memory.model_setup import check_available, load_family, prepare_model
from modules.training.methods.method import export_of, prepare
from modules.training.optim.schedule_free import averaged
from modules.training.state.plan import InitialModel
from modules.training.state.resume import ADAPTER, check_initial_model


def export_backup(backup: Path, config: TrainConfig, run_name: str, folder: Path, file: Path) -> list[Path]:
    """Write what a run with `config` would have saved at the step of its `backup`: into `folder` and, with
    `save_single_file`, as `file`. Computes on the CPU. Returns what is written.

    Raises TandemError if the backup is damaged or of another base model, OSError if it cannot be written.
    """
    state = open_backup(backup)
    position = state.position
    with single_process(()) as ranks:
        ranks.device = torch.device("cpu")
        family = _load(config, state, ranks)
        weights = Weights(family.model)
        if config.method != "fine_tune":  # what is added has the dtype of the base model's file
            for weight in weights.local.values():
                weight.data = weight.data.to(weights_dtype(config.precision))
        try:
            weights.load_full(_saved_weights(state))
        except (KeyError, ValueError) as error:
            raise ResumeError(f"{backup} holds another model ({error}).", "Use the config of its run") from None
        steps_per_epoch = -(-position.epoch_size // position.global_batch_size)
        steps = total_steps(config, steps_per_epoch)
        run = run_metadata(family, config, position, run_name, steps, -(-steps // steps_per_epoch))
        export = export_of(family, weights, config, file_metadata(config, run, "diffusers"))
        return write_model(ModelExport(export, run), config, folder, file)


def _load(config: TrainConfig, state: StoredState, ranks: RankGroup) -> Family:
    """The family with the model that the run began with, prepared for the weights of its backup."""
    config = config.model_copy(update={"training_adapter": None})  # which is no part of the result
    kind, report = check_available(config), SilentReport()
    fetch_base_model(kind, config, ranks, report, _go_on)
    with ExitStack() as held:
        resolved = resolve_data(config, kind, ranks, report, _go_on, held) if kind.learns_classes else config
        family = load_family(resolved)
    base_model = state.config.get("base_model")
    digests = {name: digest for name, digest in state.position.base.items() if name != ADAPTER}
    check_initial_model(family, config, InitialModel(None if base_model is None else str(base_model), digests))
    if config.method == "fine_tune":
        prepare_model(family, config, Precision(config.precision, ranks.device), ranks)
    else:
        prepare(family, config)
    return family


def _saved_weights(state: StoredState) -> Mapping[str, FullTensor]:
    """The weights and buffers that a run saves: averaged ones, if it has them. Raises ValueError if they do not fit."""
    optimizer, weights = state.optimizer, state.weights
    if optimizer.class_name == "ScheduleFreeAdamW":
        match optimizer.groups:
            case [{"betas": [float(beta1), *_]}, *_] if 0 < beta1 <= 1:
                pass
            case _:
                raise ValueError("its optimizer has no betas")
        found: dict[str, Tensor] = {}
        for name, weight in weights.items():
            if f"{name}/z" in optimizer.tensors:
                y, z = weight[...], optimizer.tensors[f"{name}/z"][...]
                if (z.shape, z.dtype) != (y.shape, y.dtype):
                    raise ValueError(f"'{printable(name)}/z' has another shape or type than the weight")
                found[name] = averaged(y, z, beta1)
        return {**weights, **found}
    return {**weights, **(state.ema or {})}


def _go_on() -> None:
    """Nobody asks this program to stop."""
