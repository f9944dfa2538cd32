"""The config of a run: settings, files, overrides, presets and error messages. Imports neither torch nor numpy."""

from modules.config.all_faults import all_faults
from modules.config.balance import AUTO, EQUAL, balance_numbers, check_balance
from modules.config.changes import Change, find_changes
from modules.config.derived import effective_batch, end_of_run, learning_rate_scale, ranks_together, total_steps
from modules.config.errors import ConfigError, DataError, ResumeError, TandemError, TrainingError
from modules.config.explain import Fault, allowed, explain, faults
from modules.config.interval import Interval
from modules.config.io.files import dump, load_config, save_config, validate
from modules.config.io.override import override
from modules.config.io.presets import load_preset, preset_names, resolve_config, save_preset
from modules.config.options import Option, find_option, in_words, is_active, options
from modules.config.section import Section, setting
from modules.config.sections.adapters import TARGET_PRESETS, UNET_PRESETS, target_patterns, unknown_submodules
from modules.config.sections.concept import Concept
from modules.config.sections.data import unsupported_resolution
from modules.config.sections.optimizer import parse_learning_rate_factors
from modules.config.sections.sampling import Sample
from modules.config.sections.submodule import SubmoduleSettings
from modules.config.sections.training import better_direction
from modules.config.train_config import SECTIONS, TrainConfig

__all__ = [
    "AUTO",
    "EQUAL",
    "SECTIONS",
    "TARGET_PRESETS",
    "UNET_PRESETS",
    "Change",
    "Concept",
    "ConfigError",
    "DataError",
    "Fault",
    "Interval",
    "Option",
    "ResumeError",
    "Sample",
    "Section",
    "SubmoduleSettings",
    "TandemError",
    "TrainConfig",
    "TrainingError",
    "all_faults",
    "allowed",
    "balance_numbers",
    "better_direction",
    "check_balance",
    "dump",
    "effective_batch",
    "end_of_run",
    "explain",
    "faults",
    "find_changes",
    "find_option",
    "in_words",
    "is_active",
    "learning_rate_scale",
    "load_config",
    "load_preset",
    "options",
    "override",
    "parse_learning_rate_factors",
    "preset_names",
    "ranks_together",
    "resolve_config",
    "save_config",
    "save_preset",
    "setting",
    "target_patterns",
    "total_steps",
    "unknown_submodules",
    "unsupported_resolution",
    "validate",
]
