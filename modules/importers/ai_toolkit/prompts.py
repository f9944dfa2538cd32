"""ai-toolkit's prompts: flags such as "--w 512 --n bad hands", and the places of the trigger word."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# toolkit/config_modules.py, GenerateImageConfig; a later one wins.
_FLAGS: Final[Mapping[str, str]] = {
    "n": "neg", "w": "width", "h": "height", "d": "seed", "seed": "seed", "l": "guidance_scale",
    "cfg": "guidance_scale", "s": "sample_steps", "steps": "sample_steps", "m": "network_multiplier",
    "network_multiplier": "network_multiplier", "gr": "guidance_rescale", "ctrl_img": "ctrl_img",
}  # fmt: skip
_PLACES: Final = ("[trigger]", "[name]")


def split_prompt(prompt: str, trigger: str) -> dict[str, object]:
    """The settings in a prompt by their names in `sample`; unknown flags keep their dashes.

    The trigger word takes its places, if there is one.
    """
    words, *parts = prompt.strip().split("--")
    found: dict[str, object] = {"prompt": with_trigger(words.strip(), trigger)}
    for part in parts:
        flag, _, value = part.strip().partition(" ")
        found[_FLAGS.get(flag, f"--{flag}")] = value.strip()
    return found


def with_trigger(text: str, trigger: str) -> str:
    """The text with the trigger word in its places."""
    for place in _PLACES if trigger else ():
        text = text.replace(place, trigger)
    return text
