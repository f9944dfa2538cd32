"""Fields of the Training section that say beside the value what it means with the other settings."""

from __future__ import annotations

from typing import Final

from app.form.field import Field
from app.form.text_fields import NumberField
from app.widgets import theme
from modules.config import TrainConfig
from modules.config.family_about import family_about
from modules.config.numbers import plain_number

_USUAL: Final = {"lora": 1e-4, "fine_tune": 1e-5}  # learning rates, as the help says
_FAR: Final = 5.0  # times from the usual one


class NotedField(NumberField):
    """A number with a remark below it."""

    def refresh(self) -> None:
        super().refresh()
        config = self.state.draft.config
        self.note("" if config is None else self.remark(config), theme.MUTED)

    def remark(self, config: TrainConfig) -> str:
        """What is to be known of the value; empty for nothing."""
        raise NotImplementedError


class LearningRateField(NotedField):
    """The learning rate, with the usual one if it is far from it: a change of the method keeps the value."""

    def remark(self, config: TrainConfig) -> str:
        is_large = config.method == "lora" or family_about(config.family).weights_gb is not None
        usual = _USUAL.get(config.method)
        if usual is None or not is_large or config.optimizer.finds_step_size:
            return ""
        if usual / _FAR < config.learning_rate < usual * _FAR:
            return ""
        what = "a LoRA" if config.method == "lora" else "a full fine-tune"
        return f"Usual for {what}: about {plain_number(usual)}."


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
