"""Several lines of text, and groups of free values written as YAML."""

from __future__ import annotations

import json

from app.controls import TextBox
from app.form.field import CONTROL_WIDTH, ControlField
from modules.config.text_formats import read_yaml, write_yaml


class LongTextField(ControlField):
    """A box of text; Tab leaves it."""

    control: TextBox
    height = 64
    mono = False

    def build(self) -> None:
        self.control = TextBox(
            self.area, self._typed, on=self.on, width=CONTROL_WIDTH, height=self.height, mono=self.mono
        )
        self.control.pack(fill="both", expand=True)

    def read(self, typed: str) -> object:
        """What the text stands for."""
        return typed

    def _typed(self, typed: str) -> None:
        self.put(self.read(typed), typing=True)


class MappingField(LongTextField):
    """Names with values, a line each: `width: 64`."""

    height = 128
    mono = True

    def text_of(self, value: object) -> str:
        if isinstance(value, dict):
            return write_yaml(value).rstrip("\n") if value else ""
        return super().text_of(value)

    def read(self, typed: str) -> object:
        if not typed.strip():
            return {}
        try:
            return read_yaml(typed)
        except ValueError:
            return typed


class ItemsField(MappingField):
    """Items of a list that only a family of one's own declares, a line each: `- 64`."""

    def text_of(self, value: object) -> str:
        if isinstance(value, (list, tuple)):
            return "\n".join(f"- {json.dumps(item, ensure_ascii=False)}" for item in value)
        return super().text_of(value)

    def read(self, typed: str) -> object:
        return super().read(typed) if typed.strip() else []
