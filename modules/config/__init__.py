"""The config of a run: declarations, files, overrides, presets, messages; loads neither torch nor numpy."""

from modules.config.adapter_settings import TARGET_PRESETS, target_patterns, unknown_parts
from modules.config.changes import Change, changes
from modules.config.concept import Concept
from modules.config.data_settings import uneven_resolution
from modules.config.effective import effective_batch, learning_rate_scale
from modules.config.errors import ConfigError, DataError, ResumeError, TandemError, TrainingError
from modules.config.explain import Fault, allowed, explain, faults
from modules.config.files import dump, load_config, save_config, validate
from modules.config.interval import Interval
from modules.config.names import nearest
from modules.config.optimizers import Optimizer
from modules.config.options import Bounds, Option, find_option, is_active, options
from modules.config.override import override
from modules.config.part import Part
from modules.config.presets import load_preset, preset_names, save_preset
from modules.config.resolve import resolve_config
from modules.config.sampling_settings import Sample
from modules.config.section import Section, setting
from modules.config.train_config import SECTIONS, VERSION, TrainConfig

__all__ = [
    "SECTIONS",
    "TARGET_PRESETS",
    "VERSION",
    "Bounds",
    "Change",
    "Concept",
    "ConfigError",
    "DataError",
    "Fault",
    "Interval",
    "Optimizer",
    "Option",
    "Part",
    "ResumeError",
    "Sample",
    "Section",
    "TandemError",
    "TrainConfig",
    "TrainingError",
    "allowed",
    "changes",
    "dump",
    "effective_batch",
    "explain",
    "faults",
    "find_option",
    "is_active",
    "learning_rate_scale",
    "load_config",
    "load_preset",
    "nearest",
    "options",
    "override",
    "preset_names",
    "resolve_config",
    "save_config",
    "save_preset",
    "setting",
    "target_patterns",
    "uneven_resolution",
    "unknown_parts",
    "validate",
]
