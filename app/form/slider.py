"""A number whose range is natural, such as a share from 0 to 1: a slider, and a line for exact values."""

from __future__ import annotations

from app import look
from app.controls import Slider
from app.form.line import NumberField
from modules.config import Option

STEPS = 100


def is_natural(option: Option) -> bool:
    """Whether both ends mean something and all between is equally likely."""
    low, high = option.bounds.ge, option.bounds.le
    return option.type == "number" and not option.optional and low == 0 and high is not None and high <= 1


class SliderField(NumberField):
    """A slider with a number beside it."""

    width = 76

    def build(self) -> None:
        low, high = self.option.bounds.ge or 0.0, self.option.bounds.le or 1.0
        self.slider = Slider(self.area, low, high, round((high - low) * STEPS), self._moved, on=self.on, width=148)
        super().build()
        self.slider.pack(side="left", fill="x", expand=True, padx=(look.px(12), 0))

    def show(self, value: object) -> None:
        super().show(value)
        try:
            self.slider.show(float(value))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return  # the line holds no number; the slider stays

    def enable(self, enabled: bool) -> None:
        super().enable(enabled)
        self.slider.enable(enabled)

    def _moved(self, value: float) -> None:
        rounded = round(value, 2)
        self.control.show(self.text_of(rounded))
        self.put(rounded, typing=True)

    def _typed(self, typed: str) -> None:
        super()._typed(typed)
        self.show(typed.strip().replace(",", ".")) if not typed.strip().endswith((".", ",")) else None
