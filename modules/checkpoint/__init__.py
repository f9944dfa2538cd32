"""Atomic backups, exact resume and saved models."""

from modules.checkpoint.backups import Backups, Position, TrainingState, find_damage, read_backup
from modules.checkpoint.optimizer_state import OptimizerState, pack_optimizer, unpack_optimizer
from modules.checkpoint.saved_model import config_of_saved_model, save_model
from modules.checkpoint.tensor_file import on_disk

__all__ = [
    "Backups",
    "OptimizerState",
    "Position",
    "TrainingState",
    "config_of_saved_model",
    "find_damage",
    "on_disk",
    "pack_optimizer",
    "read_backup",
    "save_model",
    "unpack_optimizer",
]
