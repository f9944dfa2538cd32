"""The whole config: flat to use (`config.learning_rate`), sectioned to read."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Self

from pydantic import model_validator

from modules.config.adapter_settings import AdapterSettings, adapter_rules
from modules.config.data_settings import DataSettings
from modules.config.model_settings import ModelSettings
from modules.config.multi_gpu_settings import MultiGpuSettings
from modules.config.optimizer_settings import OptimizerSettings
from modules.config.output_settings import OutputSettings
from modules.config.sampling_settings import SamplingSettings
from modules.config.section import Section, broken_rules, setting
from modules.config.training_settings import TrainingSettings

VERSION = 1
_LAST_PORT: Final = 65_535
# A name of letters, digits, "-" and "_", in parts between dots; one of digits and dots only has to be an IP address.
_HOST_NAME: Final = re.compile(r"(?=.*[A-Za-z_-])(?!-)[\w-]{1,63}(\.(?!-)[\w-]{1,63})*\.?", re.ASCII)

SECTIONS: tuple[type[Section], ...] = (
    ModelSettings,
    DataSettings,
    TrainingSettings,
    OptimizerSettings,
    AdapterSettings,
    MultiGpuSettings,
    SamplingSettings,
    OutputSettings,
)


class TrainConfig(
    ModelSettings,
    DataSettings,
    TrainingSettings,
    OptimizerSettings,
    AdapterSettings,
    MultiGpuSettings,
    SamplingSettings,
    OutputSettings,
):
    """Every setting of a run; frozen, complete and checked."""

    version: int = setting(
        VERSION,
        title="File version",
        help="The version of the file format. Tandem writes it and opens older files; leave it as it is.",
        advanced=True,
        ge=VERSION,
        le=VERSION,
    )

    @model_validator(mode="after")
    def _settings_fit_each_other(self) -> Self:
        rules = [
            *_address_rules(self),
            *_device_rules(self),
            *_port_rules(self),
            *_process_rules(self),
            *_sharding_rules(self),
            *_validation_rules(self),
            *adapter_rules(self),
        ]
        if rules:
            raise broken_rules(rules)
        return self


def _address_rules(config: TrainConfig) -> list[tuple[str, str]]:
    address = config.master_addr
    if _HOST_NAME.fullmatch(address):
        return []
    try:
        ipaddress.ip_address(address)
    except ValueError:
        sentence = (
            f"is {address!r}; give a host name or an IP address, such as gpu01 or 10.0.0.1; the port is initial_port"
        )
        return [("master_addr", sentence)]
    return []


def _device_rules(config: TrainConfig) -> list[tuple[str, str]]:
    rules = []
    ids, world_size, num_nodes = config.device_ids, config.world_size, config.num_nodes
    if config.node_rank >= num_nodes:
        rules.append(("node_rank", f"is {config.node_rank}; it must be below num_nodes, which is {num_nodes}"))
    if ids is not None and len(set(ids)) < len(ids):
        rules.append(("device_ids", f"is {list(ids)}; each GPU may be named only once"))
    elif ids is not None and world_size is not None and world_size != len(ids) * num_nodes:
        machines = f" on each of {num_nodes} machines" if num_nodes > 1 else ""
        rules.append(
            (
                "world_size",
                f"is {world_size}, but device_ids names {len(ids)} GPUs{machines}; leave one of them empty",
            )
        )
    return rules


def _port_rules(config: TrainConfig) -> list[tuple[str, str]]:
    if config.num_nodes == 1 or config.initial_port < _LAST_PORT:
        return []
    sentence = f"is {_LAST_PORT}, and machines join on the port after it, which does not exist; use at most"
    return [("initial_port", f"{sentence} {_LAST_PORT - 1}, such as 12355")]


def _process_rules(config: TrainConfig) -> list[tuple[str, str]]:
    counts, num_nodes = config.processes_per_node, config.num_nodes
    if counts is None:
        return []
    if len(counts) not in {1, num_nodes}:
        sentence = f"is {list(counts)}, but num_nodes is {num_nodes}; give a number for each machine, or one for all"
        return [("processes_per_node", sentence)]
    total = sum(counts) if len(counts) == num_nodes else counts[0] * num_nodes
    if config.world_size in {None, total}:
        return []
    sentence = f"is {config.world_size}, but processes_per_node adds up to {total}; leave one of them empty"
    return [("world_size", sentence)]


def _sharding_rules(config: TrainConfig) -> list[tuple[str, str]]:
    """What cannot be done with parts of weights, or would give another result than with whole ones."""
    if config.training_mode != "fully_sharded":
        return []
    rules = []
    if not config.optimizer.divisible:
        named = f"is {config.optimizer.name}, which looks at whole matrices or at all weights at once"
        rules.append(("optimizer", f"{named}; training_mode fully_sharded divides them: use adamw, adam, sgd or lion"))
    if config.gradient_compression != "none":
        named = f"is {config.gradient_compression}, which is for training_mode distributed"
        rules.append(("gradient_compression", f"{named}; fully_sharded has fsdp_reduce_precision"))
    if config.channels_last:
        rules.append(("channels_last", "is true; training_mode fully_sharded keeps weights flat: set it to false"))
    return rules


def _validation_rules(config: TrainConfig) -> list[tuple[str, str]]:
    patience = config.early_stopping_patience
    if patience is None:
        return []
    rules = []
    if not config.validate_every:
        rules.append(
            (
                "early_stopping_patience",
                f"is {patience}, but validate_every is never; set it to, for example, 1 epoch",
            )
        )
    concepts = [concept for concept in config.concepts if concept.enabled and concept.kind == "validation"]
    if config.validation_split == 0 and not concepts:
        rules.append(
            (
                "early_stopping_patience",
                f"is {patience}, but there are no validation pictures; set validation_split above 0 or mark "
                "a concept as validation",
            )
        )
    return rules
