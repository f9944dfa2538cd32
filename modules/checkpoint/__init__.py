"""Atomic backups, exact resume and saved models."""

from modules.checkpoint.backup_files import (
    BACKUP_NAME,
    FILE_NAMES,
    MANIFEST,
    Position,
    TrainingState,
    find_damage,
    manifest_sha256,
    read_backup,
    read_manifest,
)
from modules.checkpoint.backups import Backups, to_cpu
from modules.checkpoint.best_weights import BEST_FILES, BestValidation, BestWeights, best_sha256, read_best
from modules.checkpoint.optimizer_state import OptimizerState, pack_optimizer, unpack_optimizer
from modules.checkpoint.saved_model import read_model_config, save_model

__all__ = [
    "BACKUP_NAME",
    "BEST_FILES",
    "FILE_NAMES",
    "MANIFEST",
    "Backups",
    "BestValidation",
    "BestWeights",
    "OptimizerState",
    "Position",
    "TrainingState",
    "best_sha256",
    "find_damage",
    "manifest_sha256",
    "pack_optimizer",
    "read_backup",
    "read_best",
    "read_manifest",
    "read_model_config",
    "save_model",
    "to_cpu",
    "unpack_optimizer",
]
