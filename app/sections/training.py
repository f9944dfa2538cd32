"""Duration, batch size, precision and optimizer."""

from __future__ import annotations

from typing import Final

from app.curves.schedule_curve import ScheduleCurve
from app.form.cards import Card
from app.form.field import Field
from app.form.training_fields import FIELD_CLASSES
from app.sections.form_section import FormSection
from modules.config import Option

OPTIMIZER = (
    "optimizer.name", "learning_rate", "optimizer.weight_decay", "optimizer.betas", "optimizer.beta1", "optimizer.eps",
    "optimizer.momentum", "optimizer.nesterov", "optimizer.decay_rate", "optimizer.clip_threshold",
    "optimizer.scale_parameter", "optimizer.d0", "optimizer.d_coef", "optimizer.bias_correction",
    "optimizer.safeguard_warmup", "optimizer.fused", "optimizer.foreach", "decay_norms_and_biases",
    "learning_rate_factors",
)  # fmt: skip


SCHEDULE: Final = "Schedule"


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
                *("scheduler", "warmup_steps", "warmup_fraction"),
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
