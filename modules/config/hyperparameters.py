"""What makes a run different from others, for lists and tables of runs that also other people may see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from modules.config.options import options
from modules.config.train_config import TrainConfig
from modules.files import is_secret_name, mask_secrets

HyperParameter: TypeAlias = "bool | int | float | str"

_ALWAYS = frozenset({"family", "method", "learning_rate", "batch_size", "optimizer.name", "seed"})
# Of the section Multi-GPU; the rest of it says where and how the processes are started.
_MULTI_GPU = frozenset(
    {
        "enable_multi_gpu",
        "training_mode",
        "lr_scaling",
        "gradient_compression",
        "powersgd_rank",
        "powersgd_start_step",
        "sync_batch_norm",
        "broadcast_buffers",
        "distributed_backend",
        "distributed_data_loading",
        "share_sampling",
        "bucket_cap_mb",
        "static_graph",
        "gradient_as_bucket_view",
        "local_steps",
        "outer_learning_rate",
        "outer_momentum",
        "outer_compression",
        "fsdp_replicate",
        "fsdp_reshard_after_forward",
        "fsdp_cpu_offload",
        "fsdp_reduce_precision",
        "fsdp_whole_gradients",
        "num_nodes",
    }
)
_MAX_TEXT = 200


def hyperparameters(config: TrainConfig, world_size: int) -> dict[str, HyperParameter]:
    """The settings that differ from the defaults, and a few always, by path; `world_size` is how many ranks train.

    Without lists such as the concepts, and without what says more about this machine or its user than about the
    training: files, folders, addresses, secrets.
    """
    data, found = config.model_dump(mode="json"), dict[str, HyperParameter](world_size=world_size)
    for option in options(TrainConfig):
        value = _value(data, option.path)
        is_private = option.picks in ("file", "folder") or is_secret_name(option.path)
        is_private |= option.section == "Multi-GPU" and option.path not in _MULTI_GPU
        if "*" in option.path or is_private or (value == option.default and option.path not in _ALWAYS):
            continue
        if option.variant is not None and option.variant != config.optimizer.name:
            continue
        if isinstance(value, bool | int | float | str) and not _is_path(value):
            found[option.path] = mask_secrets(value)[:_MAX_TEXT] if isinstance(value, str) else value
    return found


def _is_path(value: object) -> bool:
    return isinstance(value, str) and (value.startswith(("/", "~", "\\")) or value[1:3] in (":\\", ":/"))


def _value(data: object, path: str) -> object:
    for name in path.split("."):
        data = data.get(name) if isinstance(data, Mapping) else None
    return data
