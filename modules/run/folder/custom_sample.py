"""The content of the command `custom_sample`: one sample with a prompt of its own, for a run that is training."""

from __future__ import annotations

import json
from typing import Final

from pydantic import ValidationError

from modules.config import ConfigError, Sample
from modules.config.explain import explain
from modules.files import FileFault, decode_json, printable

MAX_PROMPT_CHARS: Final = 4000  # several times what any text encoder reads
_WHAT: Final = "The custom sample"


def encode_sample(sample: Sample) -> str:
    """The content of the command file."""
    return json.dumps(sample.model_dump(mode="json", exclude_defaults=True))


def decode_sample(text: str) -> Sample:
    """The sample that a command file asks for. Raises ConfigError: anybody may have written the file."""
    try:
        data = decode_json(text)
    except FileFault as fault:
        raise ConfigError(f"{_WHAT}: its command file {fault}.", 'Write e.g. {"prompt": "a red disc"}.') from None
    if not isinstance(data, dict):
        raise ConfigError(f"{_WHAT}: its command file is no group of settings.", 'Write e.g. {"prompt": "a red disc"}.')
    for name in ("prompt", "negative_prompt"):
        if isinstance(value := data.get(name), str) and len(value) > MAX_PROMPT_CHARS:
            raise ConfigError(f"{_WHAT}: {name} has {len(value):,} characters; use at most {MAX_PROMPT_CHARS:,}.")
    try:
        sample = Sample.model_validate(data)
    except ValidationError as error:
        raise ConfigError.from_faults(_WHAT, [printable(fault, 400) for fault in explain(error, Sample)]) from None
    return sample.model_copy(update={"enabled": True})
