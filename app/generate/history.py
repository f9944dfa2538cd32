"""The prompts and settings that the Generate page was used with, in a small JSON file of this user."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, ValidationError

from app.generate.settings import GenerateSettings
from modules.files import FileFault, Record, read_json, replacing, validate_record
from modules.files.private import make_private_folder
from modules.files.user_folder import user_config_folder
from modules.run.folder.custom_sample import MAX_PROMPT_CHARS

MAX_PROMPTS: Final = 50
_FILE_LIMIT: Final = 4 << 20  # bytes: all prompts as long as they may be


class Prompt(Record):
    """A prompt that was used, with its negative prompt."""

    prompt: Annotated[str, Field(min_length=1, max_length=MAX_PROMPT_CHARS)]
    negative_prompt: Annotated[str, Field(max_length=MAX_PROMPT_CHARS)] = ""


@dataclass
class History:
    """The newest prompt first; `last` are the settings of the page when it was used last."""

    last: GenerateSettings = field(default_factory=GenerateSettings)
    prompts: list[Prompt] = field(default_factory=list)

    @classmethod
    def load(cls, file: Path | None = None) -> Self:
        """Load the file; whatever in it is missing or damaged is left out."""
        try:
            data = read_json(file or history_file(), _FILE_LIMIT)
        except (OSError, FileFault):
            data = {}
        entries = data if isinstance(data, dict) else {}
        return cls(_settings(entries.get("last")), _prompts(entries.get("prompts")))

    def add(self, settings: GenerateSettings) -> None:
        """Remember that images were generated with these settings."""
        self.last = settings
        if not settings.prompt:
            return
        newest = Prompt(prompt=settings.prompt, negative_prompt=settings.negative_prompt)
        self.prompts = [newest, *(other for other in self.prompts if other != newest)][:MAX_PROMPTS]

    def save(self, file: Path | None = None) -> None:
        """Write the file; a folder that cannot be written is ignored."""
        target = file or history_file()
        data = {"last": self.last.model_dump(mode="json"), "prompts": [each.model_dump() for each in self.prompts]}
        try:
            make_private_folder(target.parent)
            with replacing(target) as partial:
                partial.write_text(json.dumps(data, indent=2, ensure_ascii=False), encoding="utf-8")
        except (OSError, ValueError):
            return


def history_file() -> Path:
    """The path of the file."""
    return user_config_folder() / "generate.json"


def _settings(data: object) -> GenerateSettings:
    if isinstance(data, dict) and isinstance(scale := data.get("lora_scale"), float):  # of 0.1.0
        data = {**data, "lora_scale": [scale]}
    try:
        return GenerateSettings.model_validate(data)
    except ValidationError:
        return GenerateSettings()


def _prompts(data: object) -> list[Prompt]:
    found = []
    for entry in data[:MAX_PROMPTS] if isinstance(data, list) else ():
        try:
            found.append(validate_record(Prompt, entry))
        except FileFault:
            continue
    return found
