"""Atomic backups, exact resume and saved models."""

from modules.checkpoint.backups import Backups, Position, TrainingState, find_damage, read_backup, to_cpu
from modules.checkpoint.optimizer_state import OptimizerState, pack_optimizer, unpack_optimizer
from modules.checkpoint.saved_model import read_model_config, save_model

__all__ = [
    "Backups",
    "OptimizerState",
    "Position",
    "TrainingState",
    "find_damage",
    "pack_optimizer",
    "read_backup",
    "read_model_config",
    "save_model",
    "to_cpu",
    "unpack_optimizer",
]
