"""Chat templates of other people's tokenizers: programs in jinja's sandbox, which limits neither steps nor sizes."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, Final

from jinja2.utils import Namespace

from modules.config import ConfigError
from modules.diffusion.base_model_files import DAMAGED

_MOST_STEPS: Final = 50_000  # lines of the compiled template; published ones take some hundred for a message
_MOST_ITEMS: Final = 1 << 22  # characters of a text, or items of a list
_COMPILED: Final = "<template>"  # jinja's name of the file


@contextmanager
def limited_template(label: str) -> Iterator[None]:
    """Inside, a template that takes too many steps, or makes too large a value, is a ConfigError: `label` and that."""
    steps = 0

    def step(frame: FrameType, event: str, _: object) -> Any:
        nonlocal steps
        if frame.f_code.co_filename != _COMPILED:
            return None
        steps += 1
        is_large = any(isinstance(value, str | list) and len(value) > _MOST_ITEMS for value in _values(frame))
        if steps > _MOST_STEPS or is_large:
            raise ConfigError(f"{label} {'makes too large a text' if is_large else 'does not end'}.", DAMAGED)
        return step

    before = sys.gettrace()
    sys.settrace(step)
    try:
        yield
    finally:
        sys.settrace(before)


def _values(frame: FrameType) -> Iterator[object]:
    for value in frame.f_locals.values():
        yield value
        if isinstance(value, Namespace):
            yield from value._Namespace__attrs.values()


def limit_template_(tokenizer: Any, label: str) -> None:
    """Let the `apply_chat_template` of a tokenizer, which pipelines of diffusers call, too, be limited."""
    tokenizer.apply_chat_template = partial(_applied, tokenizer.apply_chat_template, label)


def _applied(apply: Any, label: str, *args: Any, **kwargs: Any) -> Any:
    with limited_template(label):
        return apply(*args, **kwargs)
