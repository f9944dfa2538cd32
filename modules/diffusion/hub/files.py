"""Which files of a model on the hub are required, by name alone, and whether a folder holds them all."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path

from modules.config import ConfigError
from modules.facts import GGUF
from modules.files import FileFault, weight_map

INDEX = "model_index.json"
PICKLES = frozenset({".ckpt", ".pt", ".pth", ".bin", ".pkl"})
VARIANTS = ("", ".fp16")  # in order of preference
_WEIGHTS = r"{component}/(diffusion_pytorch_model|model){variant}(-\d+-of-\d+)?\.safetensors"
_SMALL_FILES = r"{component}/[^/]+\.(json|txt|jinja)"  # jinja: the chat template of a tokenizer
_SHARD = re.compile(r"-\d+-of-\d+\.safetensors$")


def required_files(
    label: str,
    files: Collection[str],
    components: Sequence[str],
    *,
    weights: bool,
    without_weights: Collection[str] = (),
) -> list[str]:
    """Of all `files` of a repository those that loading reads: no pickles, no second format or precision.

    Without `weights`, and of the components `without_weights`, these are configurations and tokenizers.

    Raises ConfigError if they are not a complete diffusers pipeline with safetensors weights.
    """
    if INDEX not in files:
        raise _not_a_pipeline(label, files)
    required = [INDEX]
    for component in components:
        small = [file for file in files if re.fullmatch(_SMALL_FILES.format(component=re.escape(component)), file)]
        if not small:
            raise ConfigError(f"base_model: {label!r} has no {component}.", "Choose a complete model.")
        is_network = not component.startswith(("scheduler", "tokenizer", "processor"))
        needs_weights = weights and is_network and component not in without_weights
        weight_files = _weight_files(label, files, component) if needs_weights else []
        required += [file for file in small if ".index." not in file]
        required += weight_files
        if any(_SHARD.search(file) for file in weight_files):
            required.append(_shard_index(label, small, weight_files))
    return required


def is_complete(
    folder: Path, components: Sequence[str], *, weights: bool, without_weights: Collection[str] = ()
) -> bool:
    """Whether a folder of the hub's cache holds everything that `required_files` would choose.

    A file appears there only when it is complete, but they appear one after another.
    """
    files = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    try:
        required = required_files(str(folder), files, components, weights=weights, without_weights=without_weights)
    except ConfigError:
        return False
    indexes = [file for file in required if ".index." in file]
    try:
        return all(_shards_in(folder / index) <= set(files) for index in indexes)
    except (OSError, FileFault):
        return False


def _weight_files(label: str, files: Collection[str], component: str) -> list[str]:
    for variant in VARIANTS:
        pattern = _WEIGHTS.format(component=re.escape(component), variant=re.escape(variant))
        found = sorted(file for file in files if re.fullmatch(pattern, file))
        if found:
            unsharded = [file for file in found if not _SHARD.search(file)]
            return unsharded or found
    pickled = sorted(file for file in files if file.startswith(f"{component}/") and Path(file).suffix in PICKLES)
    if pickled:
        raise ConfigError(
            f"base_model: {label!r} offers {component} only as a pickled file ({pickled[0]}), which can run arbitrary "
            "code when it is loaded.",
            "Choose a model with .safetensors weights; many have a copy or a branch (owner/model@branch) with them.",
        )
    raise ConfigError(
        f"base_model: {label!r} has no usable weights of {component}.",
        f"Expected {component}/model.safetensors or {component}/diffusion_pytorch_model.safetensors.",
    )


def _shard_index(label: str, small_files: Sequence[str], shards: Sequence[str]) -> str:
    ending = ".index.fp16.json" if ".fp16-" in shards[0] else ".safetensors.index.json"
    found = next((file for file in small_files if file.endswith(ending)), None)
    if found is None:
        raise ConfigError(
            f"base_model: {label!r} has {shards[0]}, but no file {ending} that lists all shards.",
            "Choose another model, or another branch of it (owner/model@branch).",
        )
    return found


def _not_a_pipeline(label: str, files: Collection[str]) -> ConfigError:
    if not [file for file in files if not file.startswith(".")]:
        return ConfigError(f"base_model: {label!r} on the hub is empty.", "Choose another model.")
    single = sorted(file for file in files if file.endswith(".safetensors") and "/" not in file)
    advice = "Choose a model in the diffusers format, or a .safetensors file."
    if any(file.lower().endswith(GGUF) for file in files):
        gguf = next(file for file in files if file.lower().endswith(GGUF))
        advice = (
            f"It has GGUF files: `hf download {label.partition('@')[0]} {gguf}` downloads one and prints its path, "
            "which base_model accepts."
        )
    if single:
        advice = (
            f"It contains {single[0]}: if that is a whole model, `hf download {label.partition('@')[0]} {single[0]}` "
            "downloads it and prints its path, which base_model accepts."
        )
    return ConfigError(f"base_model: {label!r} on the hub is not a diffusers pipeline: it has no {INDEX}.", advice)


def _shards_in(index: Path) -> set[str]:
    return {f"{index.parent.name}/{name}" for name in weight_map(index).values()}
