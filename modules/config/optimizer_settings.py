"""How the model is changed at each step."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import field_validator

from modules.config.optimizers import AdamW, AnyOptimizer
from modules.config.section import Section, setting


class OptimizerSettings(Section):
    """The optimizer, the learning rate and its course over the run."""

    section_title: ClassVar[str] = "Optimizer"

    optimizer: AnyOptimizer = setting(
        AdamW(),
        title="Optimizer",
        help="The method that turns mistakes into changes of the model. adamw: robust default. adam: its "
        "older form. sgd: plain, for classifiers. adafactor and came: for little memory. lion: less "
        "memory than adamw, wants about a fifth of its learning rate. prodigy: finds the step size "
        "itself, set the learning rate to 1.",
        resume="fixed",
    )
    learning_rate: float = setting(
        1e-4,
        title="Learning rate",
        help="How large each step is. Too large and the picture breaks, too small and nothing is learned. "
        "1e-4 suits LoRA, 1e-5 fine-tuning of a large model, 1 prodigy.",
        gt=0,
        le=10,
        resume="told",
    )
    scheduler: Literal["constant", "linear", "cosine", "cosine_with_restarts", "polynomial"] = setting(
        "constant",
        title="Learning rate schedule",
        help="The course of the learning rate. constant: stays. linear: falls evenly. cosine: falls "
        "gently at first and at the end. cosine_with_restarts: falls and jumps back several times. "
        "polynomial: falls along a curve you choose.",
        resume="told",
    )
    warmup_steps: int = setting(
        0,
        title="Warm-up steps",
        help="The learning rate rises from near 0 to its full value over so many steps, which keeps the "
        "first steps from damaging the model.",
        unit="steps",
        ge=0,
        le=1_000_000_000,
        resume="told",
    )
    min_learning_rate_factor: float = setting(
        0.0,
        title="Learning rate at the end",
        help="What is left of the learning rate at the end: 0 falls to nothing, 0.1 to a tenth.",
        advanced=True,
        depends_on="scheduler=linear|cosine|cosine_with_restarts|polynomial",
        ge=0,
        le=1,
        resume="told",
    )
    scheduler_cycles: int = setting(
        1,
        title="Number of falls",
        help="How often the learning rate falls over the run, jumping back up in between. 1 means no jump.",
        advanced=True,
        depends_on="scheduler=cosine_with_restarts",
        ge=1,
        le=1000,
        resume="told",
    )
    scheduler_power: float = setting(
        1.0,
        title="Curve of the fall",
        help="1 falls in a straight line, 2 falls fast at first and slowly later, 0.5 the other way round.",
        advanced=True,
        depends_on="scheduler=polynomial",
        gt=0,
        le=100,
        resume="told",
    )

    @field_validator("optimizer", mode="before")
    @classmethod
    def _short_form(cls, value: object) -> object:
        """`optimizer: lion` is enough, and settings without a name are those of the default optimizer."""
        if isinstance(value, str):
            return {"name": value}
        if isinstance(value, dict) and "name" not in value:
            return {"name": AdamW().name, **value}
        return value
