"""How the weights are updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from pydantic import field_validator, model_validator

from modules.config.keywords import keywords_text, parse_keywords
from modules.config.patterns import parse_number_patterns
from modules.config.section import Section, setting
from modules.config.sections.optimizers import CLASS_NAME, OPTIMIZERS, AdamW, AnyOptimizer, in_full

MAX_FACTOR: Final = 10_000.0
# The settings of a scheduler, which go together.
SCHEDULER: Final = ("scheduler", "scheduler_target", "scheduler_arguments", "scheduler_interval")
_SCHEDULER_KEYS: Final = {"name", "target", "arguments", "interval"}
_STEP_LR: Final = "torch.optim.lr_scheduler.StepLR"
_FACTOR_KEYS: Final = {"pattern", "factor"}


def _each_optimizer() -> str:
    """The name and the docstring of every optimizer."""
    return " ".join(f"{name}: {kind.__doc__}" for name, kind in OPTIMIZERS.items())


class OptimizerSettings(Section):
    """The optimizer, the learning rate and its schedule."""

    section_title: ClassVar[str] = "Optimizer"

    optimizer: AnyOptimizer = setting(
        AdamW(),
        title="Optimizer",
        help=f"The algorithm that updates the weights. {_each_optimizer()}",
        resume="fixed",
    )
    learning_rate: float = setting(
        1e-4,
        title="Learning rate",
        help="How large each step is. Too high and the images break, too low and nothing is learned. 1e-4 suits "
        "LoRA, 1e-5 fine-tuning of a large model, 1 prodigy.",
        gt=0,
        le=10,
        resume="warn",
    )
    scheduler: Literal["constant", "linear", "cosine", "cosine_with_restarts", "polynomial", "rex", "custom"] = setting(
        "constant",
        title="Learning-rate schedule",
        help="How the learning rate changes over the run. constant: stays the same. linear: falls evenly. "
        "cosine: falls slowly at the start and at the end. cosine_with_restarts: falls and jumps back several times. "
        "polynomial: falls along a curve of the power you choose. rex: stays high for long and falls fast at the end "
        "(arXiv:2107.04197). custom: a scheduler class, or what your own file or program builds.",
        resume="warn",
    )
    scheduler_target: str = setting(
        "",
        title="Scheduler class",
        help="A scheduler of torch.optim.lr_scheduler or pytorch_optimizer, such as torch.optim.lr_scheduler.StepLR. "
        "It begins after the warm-up. One of another installed package runs after you have allowed its code. Empty: "
        "what build_scheduler of the family's own file returns, or the scheduler that a program gives to Trainer.",
        advanced=True,
        depends_on="scheduler=custom",
        resume="warn",
    )
    scheduler_arguments: str = setting(
        "",
        title="Arguments of the scheduler",
        help="NAME = VALUE, separated by commas, such as step_size = 1000, gamma = 0.5. What it counts, "
        "scheduler_interval says. Empty: the defaults of the class.",
        advanced=True,
        depends_on="scheduler=custom",
        resume="warn",
    )
    scheduler_interval: Literal["step", "epoch"] = setting(
        "step",
        title="Scheduler interval",
        help="Whether a scheduler class takes its steps after each optimizer step, or after each epoch, as training "
        "scripts for StepLR often do.",
        advanced=True,
        depends_on="scheduler=custom",
        resume="warn",
    )
    warmup_steps: int = setting(
        0,
        title="Warm-up steps",
        help="The learning rate rises from near 0 to its full value over this many steps, which keeps the first "
        "steps from damaging the model.",
        unit="steps",
        ge=0,
        le=1_000_000_000,
        resume="warn",
    )
    warmup_fraction: float = setting(
        0.0,
        title="Warm-up as a fraction of the run",
        help="In place of warmup_steps: 0.05 warms up during the first twentieth of all steps, however many there are. "
        "0: warmup_steps decides.",
        advanced=True,
        ge=0,
        le=1,
        resume="warn",
    )
    min_learning_rate_factor: float = setting(
        0.0,
        title="Minimum learning-rate factor",
        help="Fraction of the learning rate that is left at the end: 0 falls to nothing, 0.1 to a tenth.",
        advanced=True,
        depends_on="scheduler=linear|cosine|cosine_with_restarts|polynomial|rex",
        ge=0,
        le=1,
        resume="warn",
    )
    scheduler_cycles: int = setting(
        1,
        title="Number of restarts (cycles)",
        help="How often the learning rate falls over the run, restarting at its full value in between. 1 falls once, "
        "without a restart.",
        advanced=True,
        depends_on="scheduler=cosine_with_restarts",
        ge=1,
        le=1000,
        resume="warn",
    )
    scheduler_power: float = setting(
        1.0,
        title="Polynomial power",
        help="1 falls in a straight line, 2 falls fast at first and slowly later, 0.5 the other way round.",
        advanced=True,
        depends_on="scheduler=polynomial",
        gt=0,
        le=100,
        resume="warn",
    )

    decay_norms_and_biases: bool = setting(
        True,
        title="Weight decay on norms and biases",
        help="Switch off to keep weight decay away from biases and from the weights of norms (all weights with one "
        "dimension) and from what the model itself names by no_weight_decay(), as timm's models do with position "
        "embeddings. Usual for classifiers and transformers. Makes no difference without weight decay.",
        advanced=True,
        resume="warn",
    )
    learning_rate_factors: str = setting(
        "",
        title="Learning-rate factors by layer",
        help="Trains some weights with another learning rate: PATTERN = FACTOR, separated by commas, such as "
        "stem = 0.1, head = 10. Patterns are regular expressions that are searched for in the names of weights; the "
        "first one that matches counts. The factor multiplies the learning rate of the run or of the submodule, after "
        "schedule and warm-up. Empty: all the same.",
        advanced=True,
        resume="warn",
    )

    @model_validator(mode="before")
    @classmethod
    def _scheduler_in_short(cls, data: Any) -> Any:
        """Accept `scheduler: torch.optim.lr_scheduler.StepLR` and {name, target, arguments, interval}."""
        return with_scheduler_settings(data) if isinstance(data, Mapping) else data

    @field_validator("scheduler_arguments", mode="before")
    @classmethod
    def _arguments_as_text(cls, value: object) -> object:
        """Accept a mapping."""
        return keywords_text(value) if isinstance(value, dict) else value

    @field_validator("learning_rate_factors", mode="before")
    @classmethod
    def _factors_as_text(cls, value: object) -> object:
        """Accept a list of {pattern, factor}."""
        if value and isinstance(value, list) and all(isinstance(x, dict) and x.keys() == _FACTOR_KEYS for x in value):
            return ", ".join(f"{each['pattern']} = {each['factor']}" for each in value)
        return value

    @field_validator("optimizer", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        """Accept `optimizer: lion` and `optimizer: torch.optim.Adagrad`; settings without name and target belong to
        the default optimizer."""
        return in_full(value)


def with_scheduler_settings(data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with each setting of a scheduler by itself, which may be given as {name, target, arguments,
    interval} or as the name of a class. A class or arguments alone mean a custom one."""
    given = data.get("scheduler")
    if given is None and (data.get("scheduler_target") or data.get("scheduler_arguments")):
        return {**data, "scheduler": "custom"}
    if isinstance(given, Mapping) and (given.keys() & _SCHEDULER_KEYS or not given):
        named = given.get("name", "custom" if given.get("target") else "constant")
        inner = {f"scheduler{'_' if name in _SCHEDULER_KEYS else '.'}{name}": given[name] for name in given}
        inner.pop("scheduler_name", None)
        return {**data, "scheduler": named, **inner}  # a name with a dot is reported as unknown
    if isinstance(given, str) and "." in given:
        return {**data, "scheduler": "custom", "scheduler_target": given}
    return dict(data)


def is_another_scheduler(former: Mapping[str, Any], given: Mapping[str, Any]) -> bool:
    """Whether `given` names another one than `former`, whose arguments it then does not take."""
    naming = {name: given[name] for name in SCHEDULER[:2] if name in given}
    before, now = with_scheduler_settings(former), with_scheduler_settings(naming)
    return any(name in now and now[name] != before.get(name) for name in SCHEDULER[:2])


def scheduler_rules(settings: OptimizerSettings) -> list[tuple[str, str]]:
    """What is wrong with the class of a scheduler and its arguments: pairs of a setting and the rest of a sentence."""
    target, arguments = settings.scheduler_target, settings.scheduler_arguments
    try:
        given = parse_keywords(arguments)
    except ValueError as error:
        return [("scheduler_arguments", f"is {arguments!r}, {error}")]
    if settings.scheduler != "custom":
        return []
    if target and not CLASS_NAME.fullmatch(target):
        return [("scheduler_target", f"is {target!r}; give a scheduler's class with its module, such as {_STEP_LR}")]
    if given and not target:
        return [("scheduler_arguments", f"is {arguments!r}, but scheduler_target names no class that takes it")]
    if reserved := given.keys() & {"optimizer", "last_epoch"}:
        return [("scheduler_arguments", f"has {min(reserved)}, which Tandem gives itself; leave it out")]
    return []


def parse_learning_rate_factors(text: str) -> list[tuple[str, float]]:
    """The patterns and factors of `learning_rate_factors`. Raises ValueError with the rest of a sentence."""
    return parse_number_patterns(text, "FACTOR", "head = 0.1", MAX_FACTOR)
