"""Of `{a|b}` in captions and prompts, one is used."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Final

# As in kohya's sd-scripts (train_util.py, process_caption): {{ and }} are braces, and choices are not nested.
_PART: Final = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_CHOICE: Final = re.compile(r"\{[^{}|]*\|[^{}]*\}")


def with_choices(caption: str, choose: Callable[[list[str]], str]) -> str:
    """The caption with what is chosen of each `{a|b}`, a list of one for `{a}`."""

    def replace(found: re.Match[str]) -> str:
        return found[0][0] if found[1] is None else choose(found[1].split("|"))

    return _PART.sub(replace, caption)


def drawn_prompts(prompt: str, negative_prompt: str, seed: int) -> tuple[str, str]:
    """Both prompts of a sample with one of each `{a|b}`, drawn by its seed, for each of them independently.

    `{a}` stays as it is, and so does a prompt without any choice, with its braces.
    """
    return _drawn(prompt, f"{seed}/prompt"), _drawn(negative_prompt, f"{seed}/negative_prompt")


def _drawn(prompt: str, seed: str) -> str:
    if not _CHOICE.search(prompt):
        return prompt
    rng = random.Random(seed)  # whose random() is the same in every version of Python

    def choose(choices: list[str]) -> str:
        return choices[int(rng.random() * len(choices))] if len(choices) > 1 else f"{{{choices[0]}}}"

    return with_choices(prompt, choose)


def as_drawn(prompt: str) -> str:
    """A prompt of which `drawn_prompts` makes this one, whatever the seed."""
    return prompt.replace("{", "{{").replace("}", "}}") if _CHOICE.search(prompt) else prompt
