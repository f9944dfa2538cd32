"""Duration, batch size, precision and optimizer."""

from __future__ import annotations

from typing import Final

from app.curves.schedule_curve import ScheduleCurve
from app.form.cards import Card
from app.form.field import Field
from app.form.text_fields import NumberField
from app.sections.form_section import FormSection
from app.widgets import theme
from modules.config import Option, TrainConfig
from modules.config.family_about import family_about
from modules.config.numbers import plain_number
from modules.config.sections.optimizers import OPTIMIZERS
from modules.run.suggestions import LEARNING_RATES, METHODS

OPTIMIZER = (
    "optimizer.name", "optimizer.target", "optimizer.arguments", "learning_rate",
    "optimizer.weight_decay", "optimizer.betas", "optimizer.beta1", "optimizer.eps",
    "optimizer.momentum", "optimizer.nesterov", "optimizer.decay_rate", "optimizer.clip_threshold",
    "optimizer.scale_parameter", "optimizer.d0", "optimizer.d_coef", "optimizer.bias_correction",
    "optimizer.safeguard_warmup", "optimizer.fused", "optimizer.foreach", "decay_norms_and_biases",
    "learning_rate_factors",
)  # fmt: skip


SCHEDULE: Final = "Schedule"
_FAR: Final = 5.0  # times from the usual one
_VERY_FAR: Final = 100.0  # hardly ever what was meant


class Section(FormSection):
    """Training and optimizer."""

    name = "training"
    declared_in = ("Training", "Memory", "Optimizer")
    cards = (
        Card("Length", ("epochs", "max_steps", "max_minutes", "seed"), 0),
        Card("Optimization", OPTIMIZER, 1),
        Card("Batch", ("batch_size", "gradient_accumulation_steps", "global_batch_size"), 0),
        Card(
            SCHEDULE,
            (
                *("scheduler", "scheduler_target", "scheduler_arguments", "scheduler_interval"),
                *("warmup_steps", "warmup_fraction"),
                *("min_learning_rate_factor", "scheduler_cycles", "scheduler_power"),
            ),
            1,
        ),
        Card(
            "Precision and memory",
            (
                *("precision", "gradient_checkpointing", "stochastic_rounding", "fused_backward"),
                "block_offload",
                *("channels_last", "compile", "attention_backend", "probe_memory"),
            ),
            0,
        ),
        Card(
            "Stability",
            (
                *("max_grad_norm", "ema", "ema_decay", "ema_reference_batch_size", "ema_update_every", "ema_on_cpu"),
                "max_nonfinite_steps",
            ),
            1,
        ),
        Card(
            "Validation",
            (
                *("validate_every", "restore_best", "early_stopping_patience"),
                *("early_stopping_metric", "early_stopping_mode", "early_stopping_min_delta"),
            ),
            1,
        ),
    )

    def build(self) -> None:
        """The cards, and the curve of the learning rate below the settings of its schedule."""
        super().build()
        schedule = next(block for block in self.blocks if block.heading.cget("text") == SCHEDULE)
        self.curve = ScheduleCurve(schedule.frame, self.state)
        schedule.add_below(self.curve)

    def field_class(self, option: Option) -> type[Field]:
        return FIELD_CLASSES.get(option.path) or super().field_class(option)

    def refresh(self) -> None:
        super().refresh()
        self.curve.refresh()


class NotedField(NumberField):
    """A number with a remark below it."""

    def refresh(self) -> None:
        super().refresh()
        config = self.state.draft.config
        self.note("" if config is None else self.remark(config), theme.MUTED)

    def remark(self, config: TrainConfig) -> str:
        """What is to be known of the value; empty for nothing."""
        raise NotImplementedError


class LearningRateField(NumberField):
    """The learning rate, with the usual one if it is far from it: a change of the method keeps the value."""

    def refresh(self) -> None:
        super().refresh()
        draft = self.state.draft
        method, optimizer = str(draft.get("method")), OPTIMIZERS.get(draft.variant())
        usual = LEARNING_RATES.get(method)
        is_large = method == "lora" or family_about(str(draft.get("family"))).weights_gb is not None
        off = 1.0
        if usual is not None and is_large and optimizer is not None and not optimizer.finds_step_size:
            off = _times(draft.get(self.path), usual)
        said = f"Usual for {METHODS.get(method)}: about {plain_number(usual)}." if usual and off >= _FAR else ""
        self.note(said, theme.WARN if off >= _VERY_FAR else theme.MUTED)


def _times(value: object, usual: float) -> float:
    """How many times a value is above or below the usual one; 1 for what is no learning rate."""
    try:
        rate = float(str(value))
    except ValueError:
        return 1.0
    return max(rate / usual, usual / rate) if rate > 0 else 1.0


class BatchSizeField(NotedField):
    """The batch size, which a fixed global one makes an upper bound."""

    def remark(self, config: TrainConfig) -> str:
        if config.global_batch_size is None:
            return ""
        return f"Of each micro-batch; a step has {config.global_batch_size:,}, the global batch size."


class AccumulationField(NotedField):
    """Gradient accumulation, which a fixed global batch makes a lower bound."""

    def remark(self, config: TrainConfig) -> str:
        return "" if config.global_batch_size is None else "Minimum; the global batch size decides how many there are."


FIELD_CLASSES: Final[dict[str, type[Field]]] = {
    "learning_rate": LearningRateField,
    "batch_size": BatchSizeField,
    "gradient_accumulation_steps": AccumulationField,
}
