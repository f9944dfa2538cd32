"""kohya's prompts for samples: a line each, with "--w 512 --h 768 --d 1 --s 20 --l 7.5 --n bad hands" behind it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from modules.config.importing.readers import number, text, whole
from modules.config.importing.rules import Rule, Table, Without

# The letters of sd-scripts' prompt lines.
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
        Rule("width", "width", 512, whole),
        Rule("height", "height", 512, whole),
        Rule("sample_steps", "steps", 30, whole),
        Rule("scale", "guidance_scale", 7.5, number),
        Rule("seed", "seed", None, whole, ask=False),
    ),
    without=(
        Without("guidance_scale", None, "guidance that a model was distilled with; Tandem's families have none yet"),
        Without("sample_sampler", None, "one sampler serves all samples: family_options.sample_scheduler"),
        Without("controlnet_image", None, "Tandem trains no ControlNet"),
        Without("cfg_trunc_ratio", None, "Tandem's families have no such guidance"),
        Without("renorm_cfg", None, "Tandem's families have no such guidance"),
        Without("flow_shift", None, "for flow models, which Tandem has none of yet"),
        Without("prompt_dict", None, "written by sd-scripts itself"),
        Without("enum", None, "written by sd-scripts itself"),
    ),
)


def prompts_of(lines: Sequence[str]) -> list[dict[str, object]]:
    """The settings of each prompt line by sd-scripts' own names; comments and empty lines are passed over."""
    found = []
    for line in (line.strip() for line in lines):
        if line and not line.startswith("#"):
            found.append(_prompt(line))
    return found


def _prompt(line: str) -> dict[str, object]:
    """sd-scripts cuts a line at " --" as well; what it does not know there belongs to no setting."""
    prompt, *rest = re.split(r"\s--(?=\w)", f" {line}")
    found: dict[str, object] = {"prompt": prompt.strip()}
    for part in rest:
        letter, _, value = part.strip().partition(" ")
        found[_LETTERS.get(letter.lower(), f"--{letter}")] = value.strip()
    return found
