"""kohya's sample prompts: one per line, followed by "--w 512 --h 768 --d 1 --s 20 --l 7.5 --n bad hands"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from modules.importers import common
from modules.importers.readers import integer, number, text
from modules.importers.rules import Rule, Table, Unsupported

# The option letters of sd-scripts' prompt lines.
_LETTERS: Mapping[str, str] = {
    "n": "negative_prompt",
    "w": "width",
    "h": "height",
    "d": "seed",
    "s": "sample_steps",
    "l": "scale",
    "g": "guidance_scale",
    "ss": "sample_sampler",
    "cn": "controlnet_image",
    "ctr": "cfg_trunc_ratio",
    "rcfg": "renorm_cfg",
    "fs": "flow_shift",
}

PROMPT_TABLE = Table(
    rules=(
        Rule("prompt", "prompt", "", text),
        Rule("negative_prompt", "negative_prompt", "", text),
        Rule("width", "width", 512, integer),
        Rule("height", "height", 512, integer),
        Rule("sample_steps", "steps", 30, integer),
        Rule("scale", "guidance_scale", 7.5, number),
        Rule("seed", "seed", None, integer, optional=True),
    ),
    unsupported=(
        Unsupported("guidance_scale", "for guidance-distilled models, which Tandem does not support yet"),
        Unsupported("sample_sampler", "all samples share family_options.sample_scheduler"),
        Unsupported("controlnet_image", "Tandem does not train ControlNets"),
        Unsupported("cfg_trunc_ratio renorm_cfg", "Tandem's families have no such guidance"),
        Unsupported("flow_shift", common.FLOW),
        Unsupported("prompt_dict enum", "written by sd-scripts itself"),
    ),
)


def prompts_of(lines: Sequence[str]) -> list[dict[str, object]]:
    """The settings of each prompt line by sd-scripts' names; comments and empty lines are skipped."""
    stripped = (line.strip() for line in lines)
    return [_prompt(line) for line in stripped if line and not line.startswith("#")]


def _prompt(line: str) -> dict[str, object]:
    """Split a line at " --", as sd-scripts does; unknown options keep their dashes."""
    prompt, *rest = re.split(r"\s--(?=\w)", f" {line}")
    found: dict[str, object] = {"prompt": prompt.strip()}
    for part in rest:
        letter, _, value = part.strip().partition(" ")
        found[_LETTERS.get(letter.lower(), f"--{letter}")] = value.strip()
    return found
