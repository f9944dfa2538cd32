"""Fields of the Training section that say beside the value what it means with the other settings."""

from __future__ import annotations

from typing import Final

from app.form.field import Field
from app.form.text_fields import NumberField
from app.widgets import theme
from modules.config import TrainConfig
from modules.config.family_about import family_about
from modules.config.numbers import plain_number
from modules.config.sections.optimizers import OPTIMIZERS

_USUAL: Final = {"lora": 1e-4, "fine_tune": 1e-5}  # learning rates, as the help says
_FAR: Final = 5.0  # times from the usual one
_VERY_FAR: Final = 100.0  # hardly ever what was meant


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
        usual = _USUAL.get(method)
        is_large = method == "lora" or family_about(str(draft.get("family"))).weights_gb is not None
        off = 1.0
        if usual is not None and is_large and optimizer is not None and not optimizer.finds_step_size:
            off = _times(draft.get(self.path), usual)
        what = "a LoRA" if method == "lora" else "a full fine-tune"
        said = f"Usual for {what}: about {plain_number(usual)}." if usual and off >= _FAR else ""
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
