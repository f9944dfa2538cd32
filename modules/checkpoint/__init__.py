"""Atomic backups, exact resume and saved models."""

from modules.checkpoint.backup_files import StoredState, TrainingState, not_resumable, open_backup, read_backup
from modules.checkpoint.backups import Backups, part_files, to_cpu, write_part, write_texts
from modules.checkpoint.best_weights import BEST_FILES, BestValidation, BestWeights, best_sha256, read_best
from modules.checkpoint.optimizer_state import OptimizerState, pack_optimizer, unpack_optimizer
from modules.checkpoint.saved_model import read_model_config, remove_model, save_model
from modules.checkpoint.stored_tensors import Shard, ShardRows, StoredTensor
from modules.run.folder.backup_list import Rotation, misplaced
from modules.run.folder.backup_manifest import (
    MANIFEST,
    FileEntry,
    Position,
    file_names,
    find_damage,
    is_verified,
    manifest_sha256,
    read_manifest,
    trust_checksums,
)

__all__ = [
    "BEST_FILES",
    "MANIFEST",
    "Backups",
    "BestValidation",
    "BestWeights",
    "FileEntry",
    "OptimizerState",
    "Position",
    "Rotation",
    "Shard",
    "ShardRows",
    "StoredState",
    "StoredTensor",
    "TrainingState",
    "best_sha256",
    "file_names",
    "find_damage",
    "is_verified",
    "manifest_sha256",
    "misplaced",
    "not_resumable",
    "open_backup",
    "pack_optimizer",
    "part_files",
    "read_backup",
    "read_best",
    "read_manifest",
    "read_model_config",
    "remove_model",
    "save_model",
    "to_cpu",
    "trust_checksums",
    "unpack_optimizer",
    "write_part",
    "write_texts",
]
