"""The whole config: flat to use (`config.learning_rate`), sectioned to read."""

from __future__ import annotations

import ipaddress
import re
from typing import Final, Self

from pydantic import model_validator

from modules.config.balance import AUTO, balance_numbers
from modules.config.run_names import run_name_problem, sanitize_run_name
from modules.config.section import Section, broken_rules, setting
from modules.config.sections.adapters import (
    TARGET_PRESETS,
    AdapterSettings,
    parse_alpha_pattern,
    parse_rank_pattern,
    target_patterns,
)
from modules.config.sections.data import DataSettings
from modules.config.sections.memory import MemorySettings
from modules.config.sections.model import ModelSettings
from modules.config.sections.multi_gpu import MultiGpuSettings
from modules.config.sections.optimizer import OptimizerSettings, parse_learning_rate_factors, scheduler_rules
from modules.config.sections.optimizers import OPTIMIZERS
from modules.config.sections.output import OutputSettings
from modules.config.sections.sampling import SamplingSettings
from modules.config.sections.submodule import QUANTISED, SubmoduleSettings
from modules.config.sections.training import TrainingSettings, better_direction
from modules.facts import ClipFacts, ReferenceFacts, all_facts, family_names

VERSION = 4  # to be raised with each change of what a setting means, and a step in io/migrations.py
_Rules = list[tuple[str, str]]  # settings that conflict, as pairs of field and rest of the sentence
_LAST_PORT: Final = 65_535
# Labels of letters, digits, "-" and "_" separated by dots; one of digits and dots only must be an IP address.
_HOST_NAME: Final = re.compile(r"(?=.*[A-Za-z_-])(?!-)[\w-]{1,63}(\.(?!-)[\w-]{1,63})*\.?", re.ASCII)

SECTIONS: tuple[type[Section], ...] = (
    ModelSettings,
    DataSettings,
    TrainingSettings,
    MemorySettings,
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
    MemorySettings,
    OptimizerSettings,
    AdapterSettings,
    MultiGpuSettings,
    SamplingSettings,
    OutputSettings,
):
    """Every setting of a run; frozen, complete and validated."""

    version: int = setting(
        VERSION,
        title="File version",
        help="The version of the file format. Tandem writes it and opens older files; leave it as it is.",
        advanced=True,
        ge=VERSION,
        le=VERSION,
    )

    @property
    def most_references(self) -> int:
        """How many reference images the family takes for one image."""
        facts = _references(self.family)
        return 0 if facts is None else facts.most

    @property
    def clip_step(self) -> int | None:
        """The family trains on clips of 1 + n times as many frames; None: on images alone."""
        facts = _clips(self.family)
        return None if facts is None else facts.step

    @property
    def clip_rate(self) -> float:
        """Frames per second that clips have in training; 0 if the family trains on images alone."""
        facts = _clips(self.family)
        return 0.0 if facts is None else self.fps or facts.rate

    def reference_size(self, width: int, height: int, resolution: int, step: int) -> tuple[int, int]:
        """(width, height) in pixels, multiples of `step`, that a reference image of such a width and height has beside
        images of `resolution`. The family must be one that takes references."""
        facts = _references(self.family)
        assert facts is not None
        return facts.size(width, height, self.reference_resolution or min(resolution, facts.side), step)

    def picture_size(self, width: int, height: int) -> tuple[int, int] | None:
        """(width, height) in pixels in which text encoders of the family see a reference image of such a width and
        height; None if none sees references in sizes of their own."""
        facts = _references(self.family)
        if facts is None or not facts.seen_side:
            return None
        return facts.size(width, height, facts.seen_side, 1)

    @model_validator(mode="after")
    def _check_rules(self) -> Self:
        rules = [
            *_warmup_rules(self),
            *_factor_rules(self),
            *scheduler_rules(self),
            *_average_rules(self),
            *_name_rules(self),
            *_address_rules(self),
            *_device_rules(self),
            *_port_rules(self),
            *_process_rules(self),
            *_sharding_rules(self),
            *_replication_rules(self),
            *_balance_rules(self),
            *_local_update_rules(self),
            *_machine_loss_rules(self),
            *_validation_rules(self),
            *_adapter_rules(self),
            *_cache_rules(self),
            *_reference_rules(self),
            *_clip_rules(self),
            *_logging_rules(self),
            *memory_rules(self),
        ]
        if rules:
            raise broken_rules(rules)
        return self


def _warmup_rules(config: TrainConfig) -> _Rules:
    if not (config.warmup_steps and config.warmup_fraction):
        return []
    sentence = f"is {config.warmup_fraction:g}, and warmup_steps is {config.warmup_steps}; set one of them to 0"
    return [("warmup_fraction", sentence)]


def _factor_rules(config: TrainConfig) -> _Rules:
    try:
        parse_learning_rate_factors(config.learning_rate_factors)
    except ValueError as error:
        return [
            ("learning_rate_factors", f"is {config.learning_rate_factors!r}, {error}; correct it, or leave it empty")
        ]
    return []


def _average_rules(config: TrainConfig) -> _Rules:
    if config.optimizer.name != "schedule_free_adamw" or not config.ema:
        return []
    return [("ema", "is true, but the optimizer schedule_free_adamw averages the weights itself; set it to false")]


def _name_rules(config: TrainConfig) -> _Rules:
    problem = run_name_problem(config.run_name or "run")
    return [("run_name", f"{problem}; try {sanitize_run_name(config.run_name or '')}")] if problem else []


def _address_rules(config: TrainConfig) -> _Rules:
    address = config.master_addr
    if _HOST_NAME.fullmatch(address):
        return []
    try:
        ipaddress.ip_address(address)
    except ValueError:
        sentence = "give a host name or an IP address, such as gpu01 or 10.0.0.1; the port is initial_port"
        return [("master_addr", f"is {address!r}; {sentence}")]
    return []


def _device_rules(config: TrainConfig) -> _Rules:
    rules = []
    ids, world_size, num_nodes = config.device_ids, config.world_size, config.num_nodes
    if config.node_rank >= num_nodes:
        rules.append(("node_rank", f"is {config.node_rank}; it must be below num_nodes, which is {num_nodes}"))
    if ids is not None and config.device == "cpu":
        rules.append(
            ("device_ids", f"is {list(ids)}, but device is cpu; leave device_ids empty, or set device to auto")
        )
    elif ids is not None and len(set(ids)) < len(ids):
        rules.append(("device_ids", f"is {list(ids)}; each GPU may be listed only once"))
    elif ids is not None and world_size is not None and world_size != len(ids) * num_nodes:
        machines = f" on each of {num_nodes} machines" if num_nodes > 1 else ""
        sentence = f"but device_ids lists {len(ids)} GPUs{machines}; leave one of them empty"
        rules.append(("world_size", f"is {world_size}, {sentence}"))
    return rules


def _port_rules(config: TrainConfig) -> _Rules:
    if config.num_nodes == 1 or config.initial_port < _LAST_PORT:
        return []
    sentence = f"is {_LAST_PORT}, and machines join on the port after it, which does not exist; use at most"
    return [("initial_port", f"{sentence} {_LAST_PORT - 1}, such as 12355")]


def _process_rules(config: TrainConfig) -> _Rules:
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


def _sharding_rules(config: TrainConfig) -> _Rules:
    """Settings that do not work on sharded weights, or would give another result than on whole ones."""
    if config.training_mode != "fully_sharded":
        return []
    rules = []
    if not config.optimizer.is_elementwise:
        named = f"is {config.optimizer.name}, which works on whole matrices or on all weights at once"
        usable = ", ".join(name for name, kind in OPTIMIZERS.items() if kind.is_elementwise)
        rules.append(("optimizer", f"{named}; training_mode fully_sharded splits them: use one of {usable}"))
    if config.gradient_compression != "none":
        named = f"is {config.gradient_compression}, which is for training_mode distributed"
        rules.append(("gradient_compression", f"{named}; fully_sharded has fsdp_reduce_precision"))
    if config.channels_last:
        rules.append(("channels_last", "is true; training_mode fully_sharded flattens weights: set it to false"))
    return rules


def _replication_rules(config: TrainConfig) -> _Rules:
    """Hybrid sharding wants weights that are sharded, and machines of one size."""
    mode = config.training_mode
    if config.fsdp_replicate == "none" or mode == "single" or (mode == "auto" and not config.enable_multi_gpu):
        return []  # one process has nothing to divide
    back = "or set fsdp_replicate to none"
    if mode != "fully_sharded":
        sentence = f"is machines, but training_mode is {mode}, which shards nothing; set training_mode to fully_sharded"
        return [("fsdp_replicate", f"{sentence}, {back}")]
    counts, world_size, machines = config.processes_per_node, config.world_size, config.num_nodes
    wanted = "but fsdp_replicate machines needs as many processes on each machine; make them equal"
    if counts is not None and len(set(counts)) > 1:
        return [("processes_per_node", f"is {list(counts)}, {wanted}, {back}")]
    if world_size is not None and world_size % machines:
        return [("world_size", f"is {world_size} on {machines} machines, {wanted}, {back}")]
    return []


def _balance_rules(config: TrainConfig) -> _Rules:
    """Where no rank can measure how fast it is by itself."""
    waiting = {
        "training_mode fully_sharded": config.training_mode == "fully_sharded",
        "sync_batch_norm": config.sync_batch_norm,
    }
    found = [name for name, waits in waiting.items() if waits]
    if config.balance != AUTO or not found:
        return []
    sentence = f"is auto, but with {found[0]} the ranks wait for each other in every layer, so none can measure its own"
    return [("balance", f"{sentence} speed; give numbers, such as [2, 1], or equal")]


def _local_update_rules(config: TrainConfig) -> _Rules:
    """What does not go with machines that hold different weights between two outer steps."""
    if config.local_steps is None:
        return []
    mode, optimizer = config.training_mode, config.optimizer.name
    found = {
        "training_mode is fully_sharded, which divides the weights among the GPUs": mode == "fully_sharded",
        "sync_batch_norm, with which all GPUs wait for each other in every layer, is true": config.sync_batch_norm,
        f"gradient_compression is {config.gradient_compression}, which is for gradients that machines exchange (see "
        "outer_compression)": config.gradient_compression != "none",
        f"the optimizer is {optimizer}, whose state an outer step would contradict": (
            optimizer in ("schedule_free_adamw", "prodigy")
        ),
    }
    sentence = f"is {config.local_steps}, but"
    return [
        ("local_steps", f"{sentence} {fault}; change that, or leave it empty")
        for fault, is_so in found.items()
        if is_so
    ]


def _machine_loss_rules(config: TrainConfig) -> _Rules:
    """What fewer ranks could not go on with."""
    if config.on_machine_loss != "continue":
        return []
    rules = []
    if not config.backup_every:
        sentence = "is continue, which goes on from the newest backup, but backup_every is never; give an interval, "
        rules.append(("on_machine_loss", f"{sentence}such as 200 steps"))
    if balance_numbers(config.balance):
        sentence = f"is continue, but balance is [{config.balance}], a number for each rank of all machines; set "
        rules.append(("on_machine_loss", f"{sentence}balance to auto or equal, or on_machine_loss to wait"))
    return rules


def _validation_rules(config: TrainConfig) -> _Rules:
    """What early stopping and restore_best need."""
    patience = config.early_stopping_patience
    wanted = [("early_stopping_patience", str(patience))] if patience is not None else []
    wanted += [("restore_best", "true")] if config.restore_best else []
    if not wanted:
        return []
    missing = []
    if not config.validate_every:
        missing.append("validate_every is never; set it to, for example, 1 epoch")
    concepts = [concept for concept in config.concepts if concept.enabled and concept.kind == "validation"]
    if config.validation_split == 0 and not concepts and config.family in family_names():
        problem = "there are no validation images"
        missing.append(f"{problem}; set validation_split above 0 or mark a concept as validation")
    rules = [(field, f"is {value}, but {sentence}") for field, value in wanted for sentence in missing]
    metric = config.early_stopping_metric
    if not better_direction(metric, config.early_stopping_mode):
        sentence = f"is auto, but whether higher values of {metric!r} are better is not known; use min or max"
        rules.append(("early_stopping_mode", sentence))
    return rules


def _cache_rules(config: TrainConfig) -> _Rules:
    if config.cache_latents or not config.cache_only:
        return []
    return [("cache_only", "is true, but cache_latents is false, so there is nothing to cache; set one of them back")]


def _reference_rules(config: TrainConfig) -> _Rules:
    given = [
        *((f"concepts.{n}.references", reference_fault(config.family, len(c.reference_folders)))
          for n, c in enumerate(config.concepts) if c.enabled),
        *((f"samples.{n}.reference", sample_image_fault(config.family, len(s.reference_files)))
          for n, s in enumerate(config.samples) if s.enabled),
    ]  # fmt: skip
    rules = [(path, fault) for path, fault in given if fault]
    facts = _references(config.family)
    largest, side = None if facts is None else facts.largest, config.reference_resolution
    if largest is not None and side is not None and side > largest:
        rules.append(("reference_resolution", f"is {side}; {config.family} takes at most {largest}"))
    if facts is not None and facts.seen_by_text and config.reference_dropout:
        rules.append(
            ("reference_dropout", f"is {config.reference_dropout}, but {config.family} always sees references; use 0")
        )
    return rules


def reference_fault(family: str, count: int) -> str:
    """The rest of a sentence, if a caption or prompt of this family cannot have so many reference images."""
    facts = _references(family)
    if not count or (facts is not None and count <= facts.most):
        return ""
    if facts is not None:
        return f"names {count}; {family} takes {facts.most} for each image"
    others = ", ".join(name for name, each in all_facts().items() if each.references is not None)
    return f"is given, but {family} takes no reference images; models that edit images do: {others}"


def sample_image_fault(family: str, count: int) -> str:
    """As `reference_fault`, of a sample, which may be given its first frame."""
    clips = _clips(family)
    if clips is None or not clips.first_frame:
        return reference_fault(family, count)
    return f"names {count}; {family} takes 1, the first frame of the video" if count > 1 else ""


def _clip_rules(config: TrainConfig) -> _Rules:
    step = config.clip_step
    if step is None or (over := (config.frames - 1) % step) == 0:
        return []
    nearest = " or ".join(str(config.frames - over + each) for each in (0, step))
    return [("frames", f"is {config.frames}; {config.family} takes 1 + a multiple of {step}, such as {nearest}")]


def _clips(family: str) -> ClipFacts | None:
    facts = all_facts().get(family)
    return None if facts is None else facts.clips


def _references(family: str) -> ReferenceFacts | None:
    facts = all_facts().get(family)
    return None if facts is None else facts.references


def _logging_rules(config: TrainConfig) -> _Rules:
    every = config.histograms_every
    if every and not config.tensorboard:
        sentence = "but tensorboard, which shows them, is false; set it to true, or histograms_every to never"
    elif every.unit == "minutes" and config.training_mode == "fully_sharded":
        sentence = "but with fully_sharded all processes compute them in the same step; give steps or epochs"
    else:
        return []
    return [("histograms_every", f"is {every}, {sentence}")]


def _adapter_rules(config: TrainConfig) -> _Rules:
    rules = [rule for index, part in enumerate(config.parts) for rule in _submodule_rules(config, index, part)]
    if config.parts and config.method != "embedding" and not any(part.train for part in config.parts):
        rules.append(("parts", "trains nothing; set train to true for one of them, or leave the list empty"))
    if config.method == "lora":
        rules += [*_target_rules(config.lora_targets), *_algorithm_rules(config)]
    if config.method == "embedding" and not config.embedding_init.strip():
        rules.append(("embedding_init", f"is {config.embedding_init!r}; give a word, such as cat"))
    if config.method == "embedding" and config.embedding_token.split() != [config.embedding_token]:
        rules.append(("embedding_token", f"is {config.embedding_token!r}; give one word, such as <my-cat>"))
    return rules


def _algorithm_rules(config: TrainConfig) -> _Rules:
    """The patterns of ranks and alphas, and what only a plain LoRA has."""
    rules = []
    for field, parse in (("lora_rank_pattern", parse_rank_pattern), ("lora_alpha_pattern", parse_alpha_pattern)):
        text = str(getattr(config, field))
        try:
            parse(text)
        except ValueError as error:
            rules.append((field, f"is {text!r}, {error}; correct it, or leave it empty"))
    if config.lora_algorithm == "lora":
        return rules
    of_lora: tuple[tuple[str, object, bool], ...] = (
        ("lora_weight_decompose", "true", config.lora_weight_decompose),
        ("lora_dropout", config.lora_dropout, config.lora_dropout > 0),
        ("lora_plus_ratio", f"{config.lora_plus_ratio:g}", config.lora_plus_ratio != 1),
    )
    rules += [
        (field, f"is {value}, which only lora_algorithm lora has; set it back, or lora_algorithm to lora")
        for field, value, is_set in of_lora
        if is_set
    ]
    return rules


def _submodule_rules(config: TrainConfig, index: int, part: SubmoduleSettings) -> _Rules:
    rules = []
    path = f"parts.{index}"
    if part.part in [other.part for other in config.parts[:index]]:
        rules.append((f"{path}.part", f"is {part.part!r}, which is already in the list; list each submodule once"))
    if part.stop_after.unit == "minutes":
        sentence = "use steps or epochs, which end at the same step on every GPU and after a resume"
        rules.append((f"{path}.stop_after", f"is {part.stop_after}; {sentence}"))
    if part.weights in QUANTISED:
        as_the_run = "set it to run, which keeps these weights in the run's precision"
        if config.method == "fine_tune":
            sentence = f"but fine_tune trains and saves the model itself; {as_the_run}, or set method to lora"
            rules.append((f"{path}.weights", f"is {part.weights}, {sentence}"))
        elif config.training_mode == "fully_sharded":
            sentence = f"but training_mode fully_sharded divides weights, not their bits; {as_the_run}, or to bf16"
            rules.append((f"{path}.weights", f"is {part.weights}, {sentence}"))
    if part.weights in ("bf16", "fp16"):
        as_the_run = "set it to run, which keeps these weights in the run's precision"
        if config.precision not in ("bf16", "fp16"):
            sentence = f"but precision is {config.precision}; {as_the_run}, or set precision to bf16 or fp16"
            rules.append((f"{path}.weights", f"is {part.weights}, {sentence}"))
        elif config.method == "fine_tune":
            sentence = (
                f"but fine_tune saves the whole model, which this would round; {as_the_run}, or set method to lora"
            )
            rules.append((f"{path}.weights", f"is {part.weights}, {sentence}"))
    return rules


def _target_rules(lora_targets: str) -> _Rules:
    if lora_targets in TARGET_PRESETS:
        return []
    presets = ", ".join(TARGET_PRESETS)
    patterns = target_patterns(lora_targets)
    if not patterns:
        return [("lora_targets", f"is {lora_targets!r}; use one of {presets}, or patterns")]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            problem = f"in which {pattern!r} is not a valid regular expression ({error})"
            return [("lora_targets", f"is {lora_targets!r}, {problem}; use one of {presets}, or correct it")]
    return []


def memory_rules(config: TrainConfig) -> list[tuple[str, str]]:
    """Pairs of a setting and the rest of a sentence about it."""
    rules = []
    if config.stochastic_rounding:
        rules += [("stochastic_rounding", f"is true, but {reason}") for reason in _against_rounding(config)]
    if config.fused_backward:
        rules += [("fused_backward", f"is true, but {reason}") for reason in _against_fusing(config)]
    if config.block_offload:
        rules += [
            ("block_offload", f"is {config.block_offload:g}, but {reason}") for reason in _against_offload(config)
        ]
    return rules


def _against_offload(config: TrainConfig) -> list[str]:
    found = []
    if config.method == "fine_tune":
        found.append("fine_tune trains the blocks themselves; set it to 0, or method to lora")
    if config.compile:
        found.append("compile is true, and compiled blocks cannot ask for their weights; set one of them back")
    if config.training_mode in ("fully_sharded", "data_parallel"):
        found.append(
            f"training_mode {config.training_mode} moves weights itself; set it to 0, or training_mode to auto"
        )
    return found


def _against_rounding(config: TrainConfig) -> list[str]:
    found = []
    if config.precision != "bf16":
        found.append(f"precision is {config.precision}; set precision to bf16, or switch it off")
    if config.method != "fine_tune":
        found.append(
            f"method {config.method} trains few weights, which stay in fp32; switch it off, and set parts.N.weights "
            "for the frozen ones"
        )
    name = config.optimizer.name
    if not config.optimizer.per_parameter_step or name == "schedule_free_adamw":
        reason = (
            "keeps its average in the weights"
            if name == "schedule_free_adamw"
            else "needs the step of all weights at once"
        )
        usable = ", ".join(
            name for name, kind in OPTIMIZERS.items() if kind.per_parameter_step and name != "schedule_free_adamw"
        )
        found.append(f"the optimizer {name} {reason}; use one of {usable}, or switch it off")
    return found


def _against_fusing(config: TrainConfig) -> list[str]:
    found = []
    several = config.world_size if config.world_size is not None else len(config.device_ids or ()) * config.num_nodes
    is_split = max(several, config.num_nodes) > 1 or config.training_mode in ("fully_sharded", "data_parallel")
    if config.enable_multi_gpu and is_split:
        found.append("gradients of several GPUs are summed before they are applied; switch it off, or train on one GPU")
    if config.max_grad_norm is not None:
        found.append(
            f"max_grad_norm is {config.max_grad_norm:g}, and the norm is known only when all gradients are; leave "
            "max_grad_norm empty"
        )
    parts = config.gradient_accumulation_steps
    if parts > 1:
        found.append(
            f"gradient_accumulation_steps is {parts}, which keeps all gradients from batch to batch; set it to 1"
        )
    elif config.global_batch_size is not None and config.global_batch_size > config.batch_size:
        found.append(
            f"global_batch_size {config.global_batch_size} is above batch_size {config.batch_size}, so gradients are "
            "kept from batch to batch; leave global_batch_size empty"
        )
    if config.precision == "fp16":
        found.append("precision is fp16, whose loss scale is checked on all gradients; use bf16")
    if config.histograms_every:
        found.append(
            f"histograms_every is {config.histograms_every}, and no gradient is left to count; set it to never"
        )
    if not config.optimizer.per_parameter_step:
        usable = ", ".join(name for name, kind in OPTIMIZERS.items() if kind.per_parameter_step)
        found.append(
            f"the optimizer {config.optimizer.name} needs the gradients of all weights at once; use one of {usable}"
        )
    return found
