"""Which files of a model on the hub are needed, by their names alone; and whether a folder holds them all."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from pathlib import Path

from modules.config import ConfigError

INDEX = "model_index.json"
PICKLES = frozenset({".ckpt", ".pt", ".pth", ".bin", ".pkl"})
VARIANTS = ("", ".fp16")  # the first that a part has is taken
_WEIGHTS = r"{part}/(diffusion_pytorch_model|model){variant}(-\d+-of-\d+)?\.safetensors"
_DESCRIPTIONS = r"{part}/[^/]+\.(json|txt)"
_SHARDS = re.compile(r"-\d+-of-\d+\.safetensors$")


def wanted_files(called: str, files: Collection[str], parts: Sequence[str], *, weights: bool) -> list[str]:
    """Of all `files` of a repository those that loading reads: no pickles, no second format or precision.

    Raises ConfigError where they are no whole diffusers pipeline with safetensors weights.
    """
    if INDEX not in files:
        raise _no_pipeline(called, files)
    wanted = [INDEX]
    for part in parts:
        described = [file for file in files if re.fullmatch(_DESCRIPTIONS.format(part=re.escape(part)), file)]
        if not described:
            raise ConfigError(f"base_model: {called!r} has no {part}.", "Choose a whole model, with all its parts.")
        needs_weights = weights and not part.startswith(("scheduler", "tokenizer"))
        chosen = _weights_of(called, files, part) if needs_weights else []
        wanted += [file for file in described if ".index." not in file]
        wanted += chosen
        if any(_SHARDS.search(file) for file in chosen):
            wanted.append(_index_of(called, described, chosen))
    return wanted


def is_whole(folder: Path, parts: Sequence[str], *, weights: bool) -> bool:
    """Whether a folder of the hub's cache holds everything that `wanted_files` would choose.

    Files appear there only when they are complete, but one after the other.
    """
    files = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    try:
        wanted = wanted_files(str(folder), files, parts, weights=weights)
    except ConfigError:
        return False
    indexes = [file for file in wanted if ".index." in file]
    try:
        return all(_shards_of(folder / index) <= set(files) for index in indexes)
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _weights_of(called: str, files: Collection[str], part: str) -> list[str]:
    for variant in VARIANTS:
        pattern = _WEIGHTS.format(part=re.escape(part), variant=re.escape(variant))
        found = sorted(file for file in files if re.fullmatch(pattern, file))
        if found:
            whole = [file for file in found if not _SHARDS.search(file)]
            return whole or found
    pickled = sorted(file for file in files if file.startswith(f"{part}/") and Path(file).suffix in PICKLES)
    if pickled:
        raise ConfigError(
            f"base_model: {called!r} offers {part} only as a pickled file ({pickled[0]}), which can run any program "
            "when it is opened.",
            "Choose a model with .safetensors weights; many have a copy or a branch (owner/model@branch) with them.",
        )
    raise ConfigError(
        f"base_model: {called!r} has no weights of {part} that can be used.",
        f"They would be called {part}/model.safetensors or {part}/diffusion_pytorch_model.safetensors.",
    )


def _index_of(called: str, described: Sequence[str], chosen: Sequence[str]) -> str:
    ending = ".index.fp16.json" if ".fp16-" in chosen[0] else ".safetensors.index.json"
    found = next((file for file in described if file.endswith(ending)), None)
    if found is None:
        raise ConfigError(
            f"base_model: {called!r} has {chosen[0]} and no file {ending} that says what belongs to it.",
            "Choose another model, or another branch of it (owner/model@branch).",
        )
    return found


def _no_pipeline(called: str, files: Collection[str]) -> ConfigError:
    single = sorted(file for file in files if file.endswith(".safetensors") and "/" not in file)
    if not [file for file in files if not file.startswith(".")]:
        return ConfigError(f"base_model: {called!r} on the hub is empty.", "Choose another model.")
    if single:
        return ConfigError(
            f"base_model: {called!r} on the hub is no diffusers pipeline: it has no {INDEX}.",
            f"It holds {single[0]}: if that is a whole model, `hf download {called.partition('@')[0]} {single[0]}` "
            "downloads it and prints its path, which base_model takes.",
        )
    return ConfigError(
        f"base_model: {called!r} on the hub is no diffusers pipeline: it has no {INDEX}.",
        "Choose a model in the diffusers format, or a .safetensors file.",
    )


def _shards_of(index: Path) -> set[str]:
    names: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    return {f"{index.parent.name}/{name}" for name in names.values()}
