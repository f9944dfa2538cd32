"""Fields for several lines of text, and for mappings and lists written as YAML."""

from __future__ import annotations

import json

from app.form.field import CONTROL_WIDTH, ControlField
from app.widgets.buttons import TextBox
from modules.config.io.text_formats import read_yaml, write_yaml


class LongTextField(ControlField):
    """A multi-line text box; Tab leaves it."""

    control: TextBox
    height = 64
    mono = False

    def build(self) -> None:
        self.control = TextBox(
            self.area, self._typed, bg=self.bg, width=CONTROL_WIDTH, height=self.height, mono=self.mono
        )
        self.control.pack(fill="both", expand=True)

    def parse(self, typed: str) -> object:
        """The value of the typed text."""
        return typed

    def _typed(self, typed: str) -> None:
        self.put(self.parse(typed), typing=True)


class MappingField(LongTextField):
    """A mapping, one `name: value` per line."""

    height = 128
    mono = True

    def to_text(self, value: object) -> str:
        if isinstance(value, dict):
            return write_yaml(value).rstrip("\n") if value else ""
        return super().to_text(value)

    def parse(self, typed: str) -> object:
        if not typed.strip():
            return {}
        try:
            return read_yaml(typed)
        except ValueError:
            return typed


class ItemsField(MappingField):
    """A list that only custom families declare, one `- item` per line."""

    def to_text(self, value: object) -> str:
        if isinstance(value, (list, tuple)):
            return "\n".join(f"- {json.dumps(item, ensure_ascii=False)}" for item in value)
        return super().to_text(value)

    def parse(self, typed: str) -> object:
        return super().parse(typed) if typed.strip() else []
