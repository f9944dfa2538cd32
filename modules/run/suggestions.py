"""First settings for a data set, a method and the hardware, each with its reason (docs/data.md, "Suggested settings").

They are rules of thumb, each beside its source: Tandem's presets, or the documentation of another trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from modules.config import TrainConfig
from modules.config.family_about import family_about
from modules.config.io.text_formats import Data
from modules.config.numbers import format_number
from modules.config.sections.optimizers import OPTIMIZERS
from modules.facts import FamilyFacts, all_facts, known_model
from modules.run.batch_size.records import SearchRequest
from modules.run.format_memory import format_memory

# Learning rates of AdamW: LoRA and fine-tuning as in the presets, in ai-toolkit's examples (1e-4) and OneTrainer's
# presets (1e-5); embedding as in the preset textual_inversion.
LEARNING_RATES: Final[Mapping[str, float]] = {"lora": 1e-4, "fine_tune": 1e-5, "embedding": 5e-3}
_FROM_SCRATCH: Final = 1e-3  # the default of torch.optim.Adam
_LOKR: Final = 10.0  # times that of a LoRA: SimpleTuner, documentation/quickstart, "Learning rates"
_LION: Final = 0.2  # of that of AdamW, from the same place: 1e-3 and 2e-4
_LIKE_ADAMW: Final = frozenset(
    {"adamw", "adamw_8bit", "flash_adamw", "schedule_free_adamw", "adam", "adafactor", "came"}
)
METHODS: Final = {"lora": "a LoRA", "fine_tune": "a full fine-tune", "embedding": "an embedding"}

_NEAR: Final = 0.9  # of the model's resolution, from which it is taken
_STEP: Final = 64  # pixels, of resolutions below that
_BATCHES: Final = {"lora": 4, "fine_tune": 16, "embedding": 4}  # images of a step, as in the presets
_BATCH_FROM_SCRATCH: Final = 32  # as in the preset classifier_demo
_EPOCHS: Final = {"lora": 20, "fine_tune": 10, "embedding": 20}  # as in the presets
_EPOCHS_FROM_SCRATCH: Final = 25  # as in the preset demo
# ai-toolkit's examples: "500 - 4000 is a good range", for LoRAs and fine-tunes; 3000 for an embedding: diffusers,
# examples/textual_inversion/README.md. From scratch as the preset demo.
_STEPS: Final = {"lora": (500, 4000), "fine_tune": (500, math.inf), "embedding": (3000, 4000)}
_STEPS_FROM_SCRATCH: Final = (2000, math.inf)
_UNEVEN: Final = 3.0  # times as many images as in the smallest concept
_MOST_REPEATS: Final = 10  # sd-scripts, docs/config_README-en.md, `num_repeats`


@dataclass(frozen=True)
class ConceptData:
    """What is trained on of one concept: `samples` of an epoch before its own repeats, the median size in pixels."""

    number: int  # position in config.concepts
    images: int
    samples: float
    width: int
    height: int

    @property
    def side(self) -> float:
        """Of a square of the median size, in pixels."""
        return math.sqrt(self.width * self.height)


@dataclass(frozen=True)
class BatchMemory:
    """Bytes of a rank's device, and what training takes of them: `fixed`, and `per_image` at a resolution in pixels."""

    capacity: int
    fixed: int
    per_image: int
    resolution: int

    def at(self, resolution: int) -> BatchMemory:
        """At another resolution: what an image takes grows with its pixels."""
        per_image = round(self.per_image * (resolution / self.resolution) ** 2)
        return BatchMemory(self.capacity, self.fixed, per_image, resolution)

    @property
    def most_images(self) -> int:
        """How many fit at once into the share that find_batch_size fills; 0 if not even one does."""
        return max(0, (round(SearchRequest.memory_target * self.capacity) - self.fixed) // max(self.per_image, 1))

    def needed(self, images: int) -> int:
        """Bytes that so many images at once take."""
        return self.fixed + images * self.per_image


@dataclass(frozen=True)
class Situation:
    """What the rules know besides the settings: of the data that is trained on, and of the hardware."""

    data: tuple[ConceptData, ...]
    size_step: int  # pixels; sizes are multiples of it
    world_size: int
    memory: BatchMemory | None  # None: not known


@dataclass(frozen=True)
class Suggestion:
    """A value for a setting, and why."""

    path: str
    value: object
    reason: str


def suggest(
    config: TrainConfig,
    data: Sequence[ConceptData],
    *,
    size_step: int = 8,
    world_size: int = 1,
    memory: BatchMemory | None = None,
    may_change: Callable[[str], bool] = lambda path: True,
) -> list[Suggestion]:
    """What suits the data, also where the settings have it already; nothing that they would reject.

    Settings that `may_change` is false for, by their path, are taken as they are.
    """
    trained = tuple(each for each in data if each.images and is_learned(config, each.number))
    if not trained:
        return []
    situation, found = Situation(trained, size_step, world_size, memory), list[Suggestion]()
    for rule in (_resolution, _repeats, _global_batch, _accumulation, _batch_size, _epochs, _learning_rate):
        for suggestion in rule(config, situation):
            if not may_change(suggestion.path):
                continue
            try:
                config = with_suggestions(config, [suggestion])
            except ValidationError:
                continue
            found.append(suggestion)
    return found


def with_suggestions(config: TrainConfig, suggestions: Sequence[Suggestion]) -> TrainConfig:
    """The config with these values. Raises ValidationError."""
    data: Data = config.model_dump(mode="json")
    for each in suggestions:
        *names, last = each.path.split(".")
        place: Data = data
        for name in names:
            place = place[int(name) if isinstance(place, list) else name]  # type: ignore[assignment]
        place[last] = each.value
    return TrainConfig.model_validate(data)


def is_learned(config: TrainConfig, number: int) -> bool:
    """Whether a concept is there to be learned: neither off, nor held out, nor what shall only not be forgotten."""
    concept = config.concepts[number]
    return concept.enabled and concept.kind == "train" and not concept.prior


def fitting_resolution(family: str, base_model: str | None, side: float, size_step: int = 8) -> int:
    """For images of so many pixels a side: the model's own, less for smaller images; 0 for an unknown family.

    A base model is not trained below half of its own: it has hardly seen such images.
    """
    facts = all_facts().get(family)
    if facts is None:
        return 0
    own = _own_resolution(facts, base_model)
    if side >= _NEAR * own:
        return own
    step, least = (_STEP, own // 2) if facts.has_base_model else (size_step, size_step)
    return max(least, int(side) // step * step)


def _own_resolution(facts: FamilyFacts, base_model: str | None) -> int:
    model = known_model(base_model or "")
    return (model.resolution if model is not None else 0) or facts.resolution


def median_of(data: Sequence[ConceptData]) -> ConceptData:
    """The concept of median size, by images."""
    by_size = sorted(data, key=lambda each: each.side)
    half, seen = sum(each.images for each in data) / 2, 0
    for each in by_size:
        seen += each.images
        if seen >= half:
            return each
    return by_size[-1]


def _resolution(config: TrainConfig, situation: Situation) -> Iterator[Suggestion]:
    data = [each for each in situation.data if not config.concepts[each.number].resolution_list]
    facts = all_facts().get(config.family)
    if not data or facts is None:
        return
    median, title = median_of(data), family_about(config.family).title
    own, size = _own_resolution(facts, config.base_model), f"{median.width} × {median.height}"
    value = fitting_resolution(config.family, config.base_model, median.side, situation.size_step)
    if value == own and facts.has_base_model:
        reason = f"{title} generates at {own}, and the images are large enough: mostly {size}."
    elif value == own:
        reason = f"Larger takes long from scratch; the images are mostly {size}."
    elif value > median.side:
        reason = f"The images are mostly {size}, but {title}, made for {own}, does badly below half of that."
    else:
        reason = f"The images are mostly {size}; more would only enlarge them."
    yield Suggestion("resolution", value, reason)


def _repeats(config: TrainConfig, situation: Situation) -> Iterator[Suggestion]:
    concepts = [config.concepts[each.number] for each in situation.data]
    is_own_choice = any(each.repeats != 1 or each.folder_repeats or each.resolution_list for each in concepts)
    if len(concepts) < 2 or is_own_choice:
        return
    most = max(each.images for each in situation.data)
    for each in situation.data:
        if most >= _UNEVEN * each.images:
            repeats = min(_MOST_REPEATS, round(most / each.images))
            reason = f"{each.images:,} images beside {most:,}: shown about as often, at most {_MOST_REPEATS} times."
            yield Suggestion(f"concepts.{each.number}.repeats", repeats, reason)


def _samples(config: TrainConfig, situation: Situation) -> int:
    """Of an epoch, rounded for each concept as a run does."""
    return sum(max(1, math.floor(each.samples * config.concepts[each.number].repeats + 0.5)) for each in situation.data)


def _global_batch(config: TrainConfig, situation: Situation) -> Iterator[Suggestion]:
    batch = usual = _BATCH_FROM_SCRATCH if _is_from_scratch(config) else _BATCHES[config.method]
    while batch > _samples(config, situation):
        batch //= 2
    reason = f"Usual for {_what(config)}, and the same on any number of GPUs."
    if batch < usual:
        reason = f"{usual} are usual for {_what(config)}, but more than an epoch has."
    if batch < situation.world_size:
        batch, reason = situation.world_size, "One for each GPU."
    yield Suggestion("global_batch_size", batch, reason)


def _accumulation(config: TrainConfig, situation: Situation) -> Iterator[Suggestion]:
    if config.gradient_accumulation_steps > 1 and config.global_batch_size is not None:
        reason = "The global batch size alone says what a step has; more would only split it into smaller batches."
        yield Suggestion("gradient_accumulation_steps", 1, reason)


def _batch_size(config: TrainConfig, situation: Situation) -> Iterator[Suggestion]:
    memory = situation.memory and situation.memory.at(config.largest_resolution)
    usual = _BATCH_FROM_SCRATCH if _is_from_scratch(config) else _BATCHES[config.method]
    share = math.ceil((config.global_batch_size or usual * situation.world_size) / situation.world_size)
    if memory is None:
        if config.batch_size > share:
            yield Suggestion("batch_size", share, "The share of each GPU in a step.")
        return
    device = format_memory(memory.capacity)
    if not memory.most_images:
        reason = f"Even one needs about {format_memory(memory.needed(1))} of {device}: Model says what would fit."
        yield Suggestion("batch_size", 1, reason)
        return
    micro_batches = math.ceil(share / memory.most_images)
    size = math.ceil(share / micro_batches)
    needs = f"about {format_memory(memory.needed(size))} of {device}"
    whole = f"Its whole share of a step fits: {needs}."
    yield Suggestion("batch_size", size, whole if size == share else f"{share} would not fit; {size} need {needs}.")


def _epochs(config: TrainConfig, situation: Situation) -> Iterator[Suggestion]:
    if config.max_steps is not None:
        return  # the length is set in steps
    is_from_scratch = _is_from_scratch(config)
    least, most = _STEPS_FROM_SCRATCH if is_from_scratch else _STEPS[config.method]
    usual = _EPOCHS_FROM_SCRATCH if is_from_scratch else _EPOCHS[config.method]
    batch = config.global_batch_size or config.batch_size * situation.world_size * config.gradient_accumulation_steps
    samples = _samples(config, situation)
    per_epoch = max(1, samples // batch if config.drop_last else -(-samples // batch))
    epochs = max(1, math.floor(min(max(usual, math.ceil(least / per_epoch)), max(most / per_epoch, 1))))
    steps = format_number(epochs * per_epoch)
    span = f"at least {format_number(least)}" if math.isinf(most) else f"{least:,.0f} to {most:,.0f}"
    yield Suggestion("epochs", epochs, f"About {steps} steps of {batch}; {span} are usual for {_what(config)}.")


def _learning_rate(config: TrainConfig, situation: Situation) -> Iterator[Suggestion]:
    optimizer, kind = config.optimizer.name, OPTIMIZERS[config.optimizer.name]
    if kind.finds_step_size:
        yield Suggestion("learning_rate", 1.0, f"{kind.section_title} finds the size of its steps itself.")
        return
    rate = _FROM_SCRATCH if _is_from_scratch(config) else LEARNING_RATES[config.method]
    what = _what(config)
    if config.method == "lora" and config.lora_algorithm == "lokr":
        rate, what = rate * _LOKR, "a LoKr"
    if optimizer.startswith("lion"):
        yield Suggestion(
            "learning_rate", _rounded(rate * _LION), f"A fifth of AdamW's for {what}: Lion's steps are larger."
        )
    elif optimizer in _LIKE_ADAMW:
        yield Suggestion("learning_rate", _rounded(rate), f"Usual for {what} with {kind.section_title}.")


def _rounded(rate: float) -> float:
    return float(f"{rate:.1e}")


def _is_from_scratch(config: TrainConfig) -> bool:
    """A family of the user's own trains a base model further if one is set."""
    facts = all_facts().get(config.family)
    has_base_model = facts.has_base_model if facts is not None else bool(config.base_model)
    return config.method == "fine_tune" and not has_base_model


def _what(config: TrainConfig) -> str:
    return "training from scratch" if _is_from_scratch(config) else METHODS[config.method]
