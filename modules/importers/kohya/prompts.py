"""kohya's sample prompts: one per line, followed by "--w 512 --h 768 --d 1 --s 20 --l 7.5 --n bad hands"."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from modules.importers import common
from modules.importers.readers import integer, is_text, items, number, text
from modules.importers.rules import Rule, Table, Unsupported
from modules.importers.source_file import lines_of
from modules.importers.translation import Translation

# The option letters of sd-scripts' prompt lines.
LETTERS: Mapping[str, str] = {
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

_SEVERAL = "control_image_path"  # of musubi-tuner, which takes all; of any other option the last one counts

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


def add_prompts(source: object, translation: Translation, table: Table, letters: Mapping[str, str]) -> None:
    """Translate the prompts of the setting `sample_prompts`; `letters` are the options of their lines."""
    for index, prompt in enumerate(_prompts(source, translation, letters)):
        prefix = f"sample_prompts.{index}."
        if not isinstance(prompt, Mapping) or not is_text(prompt.get("prompt")):
            translation.skip(prefix[:-1], prompt, "it has no prompt")
            continue
        translation.apply(table, prompt, prefix, f"samples.{translation.count('samples')}.")


def prompts_of(lines: Sequence[str], letters: Mapping[str, str]) -> list[dict[str, object]]:
    """The settings of each prompt line by sd-scripts' names; comments and empty lines are skipped."""
    stripped = (line.strip() for line in lines)
    return [_prompt(line, letters) for line in stripped if line and not line.startswith("#")]


def _prompt(line: str, letters: Mapping[str, str]) -> dict[str, object]:
    """Split a line at " --", as sd-scripts does; unknown options keep their dashes."""
    prompt, *rest = re.split(r"\s--(?=\w)", f" {line}")
    found: dict[str, object] = {"prompt": prompt.strip()}
    for part in rest:
        letter, _, value = part.strip().partition(" ")
        name = letters.get(letter.lower(), f"--{letter}")
        found[name] = [*items(found.get(name)), value.strip()] if name == _SEVERAL else value.strip()
    return found


def _prompts(source: object, translation: Translation, letters: Mapping[str, str]) -> Sequence[object]:
    """The prompts of a text, TOML or JSON file; kohya's GUI writes the lines themselves."""
    if not isinstance(source, str):
        translation.skip("sample_prompts", source, "expected a file")
        return []
    file = translation.paths.find(source) if len(source) < 1000 and "\n" not in source else None
    is_name = Path(source).suffix.lower() in (".txt", ".toml", ".json") and "\n" not in source
    if file is None and not is_name:
        return prompts_of(source.splitlines(), letters)
    if Path(source).suffix.lower() in (".toml", ".json"):
        return _listed(translation.read_file("sample_prompts", source), letters)
    lines = translation.read_file("sample_prompts", source, read=lines_of)
    return prompts_of(lines, letters) if isinstance(lines, list) else []


def _listed(content: object, letters: Mapping[str, str]) -> Sequence[object]:
    """[prompt] with [[prompt.subset]] in TOML; a list in JSON, also of lines."""
    if isinstance(content, Mapping) and isinstance(content.get("prompt"), Mapping):
        common = {name: value for name, value in content["prompt"].items() if name != "subset"}
        subsets = content["prompt"].get("subset")
        found = subsets if isinstance(subsets, list) else [{}]
        return [{**common, **item} for item in found if isinstance(item, Mapping)]
    listed = content if isinstance(content, list) else []
    return [_prompt(item, letters) if isinstance(item, str) else item for item in listed]
