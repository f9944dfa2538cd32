"""Finding the base model on disk or on the hub, and checking it before anything large is read."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils._validators import validate_repo_id
from safetensors import SafetensorError, safe_open

from modules.config import ConfigError
from modules.diffusion.hub.files import INDEX, PICKLES
from modules.diffusion.hub.model import HubModel
from modules.facts import FILE_INDEX, MODEL_FILES, is_lora, pipeline_of
from modules.files import FileFault, file_size, is_plain_name, printable, read_header, read_json, weight_map

# owner/model@revision; the hub's cache has a file of the revision's name, so none of its parts is ".." (as in git)
REPO_ID = re.compile(r"(?P<name>[\w.-]+/[\w.-]+)(@(?P<revision>(?!.*\.\.)[\w.-]+(/[\w.-]+)*))?")
_SMALL_FILE_LIMIT = 64 << 20  # bytes; a tokenizer's are a few MB
# What transformers and diffusers would fetch and load: kernels, https://huggingface.co/docs/transformers/main/kernel_doc,
# and custom pipelines or generation loops.
_CODE_KEYS: Final = frozenset({"kernel_config", "use_kernels", "custom_pipeline", "custom_generate"})
# What they would read from any place that a text names: of tokenizers the arguments, of image processors the labels
_READ_KEYS: Final = frozenset({"init_inputs", "vocab", "merges", "repo_path", "class_info_file"})
# and of these from another place than the folder if the text is more than a name: timm's models, whose names may begin
# with hf-hub: or local-dir:, other versions of the file, and older vocabularies.
_NAME_KEYS: Final = frozenset(
    {
        *("backbone", "architecture", "checkpoint_path", "configuration_files", "fast_tokenizer_files"),
        *("merges_file", "spm_file", "source_spm", "target_spm"),
    }
)
_ADAPTER: Final = "adapter_config.json"  # for peft, which loads the model that it names instead
_IMPLEMENTATION = re.compile(r"_?(?:attn|experts)_implementation(?:_internal)?")  # of the library, or owner/kernel
# What is built or computed one by one, and the most of it.
_COUNTS: Final = (
    # layers, of which the largest published models have some dozens, and tokens of tokenizers
    (re.compile(r"(.*_)?layers(_.*)?|n_layer|depths?|extra_ids|offset|num_madeup_words"), 1000),
    # tokens and pieces of an image, of which PaliGemma and Pix2Struct have 4,096, and of a padded text
    (
        re.compile(
            r"image_seq_len(gth)?|num_(additional_)?image_tokens|num_query_tokens|m(ax|in)_patches|max_image_tiles|"
            r"pad_to_multiple_of|Fixed"
        ),
        5000,
    ),
    (re.compile(r"num_beams|temporal_patch_size"), 64),
)
_TOKENIZER: Final = re.compile(r"tokenizer(\.[\w.-]+)?\.json")  # also tokenizer.4.0.0.json
_MOST_GROWTH: Final = 1000  # of a text by what a tokenizer replaces in it; published ones at most double it twice
_WORDS: Final = frozenset({"vocabulary_map", "label2id", "added_tokens_decoder"})  # tables whose keys are any words
LORA_ADVICE = "To continue training it, give it as lora_from; to generate images with it, as scripts/sample.py --lora."
DAMAGED = "Copy or download the model folder again."
ACCEPTED = "Give a diffusers folder, a .safetensors or .gguf file, or the name of a model on the hub (owner/model)."


def find_base_model(name: str | None, pipelines: Collection[str], components: Collection[str]) -> Path | HubModel:
    """The diffusers folder or model file that `base_model` names, or these `components` of a model on the hub.

    Raises ConfigError if it can be none of these; the hub is not contacted.
    """
    if name is None:
        raise ConfigError("base_model is empty; this family starts from a pretrained model.", ACCEPTED)
    path = Path(name)
    if path.suffix.lower() in PICKLES:
        raise _pickled(path)
    try:
        is_folder, is_file = path.is_dir(), path.is_file()
    except OSError as error:  # a name that is too long
        reason = f"cannot be read ({error.strerror})"
        raise ConfigError(f"base_model: {printable(name, 200)!r} {reason}.", ACCEPTED) from None
    if is_folder:
        return path
    if is_file:
        if not is_model_file(path):
            raise ConfigError(f"base_model: {name!r} is not a .safetensors or .gguf file.", ACCEPTED)
        return path
    found = None if is_model_file(path) else REPO_ID.fullmatch(name)
    if found is None:
        raise ConfigError(f"base_model: there is no {name!r}.", ACCEPTED)
    try:
        validate_repo_id(found["name"])
    except HFValidationError as error:  # ./model or a--b/c: meant as a folder, which does not exist
        raise ConfigError(f"base_model: there is no {name!r}.", ACCEPTED) from error
    return HubModel(found["name"], found["revision"] or "", tuple(components), tuple(sorted(pipelines)))


def is_model_file(path: Path) -> bool:
    """Whether the name is that of a model in one file, or of the index of its shards."""
    return path.name.lower().endswith(MODEL_FILES)


def index_in(folder: Path) -> Path | None:
    """The index of the shards in a folder that is no diffusers pipeline; None if it has none, or several."""
    if (folder / INDEX).is_file():
        return None
    found = [path for path in folder.glob(f"*{FILE_INDEX}") if path.is_file()]
    return found[0] if len(found) == 1 else None


def check_folder(
    folder: Path,
    pipelines: Collection[str],
    components: Collection[str],
    *,
    option: str = "base_model",
    without_weights: Collection[str] = (),
) -> None:
    """Raises ConfigError unless `folder` is a complete diffusers pipeline of one of these classes.

    `option` is the setting that names it; of the components `without_weights` only the configuration is needed.
    """
    check_pipeline_class(folder, pipelines, str(folder), option)
    check_small_files(folder, [folder / component for component in components], option)
    for component in components:
        if component == "scheduler" or component.startswith(("tokenizer", "processor")) or component in without_weights:
            _check_json_files(folder, component, option)
        else:
            read_shapes(weight_files(folder, component, option))


def check_layout(folder: Path, pipelines: Collection[str], components: Collection[str]) -> None:
    """Raises ConfigError unless `folder` has the configuration of such a pipeline; weights are not needed."""
    check_pipeline_class(folder, pipelines, str(folder), "family_options.layout")
    check_small_files(folder, sorted(each for each in folder.iterdir() if each.is_dir()), "family_options.layout")
    for component in components:
        _check_json_files(folder, component, "family_options.layout")


def check_pipeline_class(folder: Path, pipelines: Collection[str], label: str, option: str = "base_model") -> None:
    """Raises ConfigError unless the model_index.json of `folder`, `label` in messages, names one of `pipelines`."""
    if option == "base_model" and not (folder / INDEX).is_file() and (file := _adapter_in(folder)) is not None:
        raise ConfigError(
            f"base_model: {label!r} holds a LoRA ({file.name}), which is no whole model.",
            f"{LORA_ADVICE} base_model is the model that it was trained on.",
        )
    try:
        pipeline = pipeline_class(folder)
    except (OSError, FileFault) as error:
        reason = f"it {error}" if isinstance(error, FileFault) else type(error).__name__
        raise ConfigError(
            f"{option}: {label!r} is not a model folder: its {INDEX} cannot be read ({reason}).", ACCEPTED
        ) from error
    if pipeline not in pipelines:
        raise ConfigError(
            f"{option}: {label!r} contains a {pipeline}; this family trains {' or '.join(sorted(pipelines))}.",
            "Choose the family of that model, or another model.",
        )


def pipeline_class(folder: Path) -> str:
    """What the model_index.json of a diffusers folder is of (`pipeline_of`). Raises OSError or FileFault."""
    content = read_json(folder / INDEX)
    if not isinstance(content, dict) or not isinstance(content.get("_class_name"), str):
        raise FileFault("does not name the class of a pipeline (_class_name)")
    return pipeline_of(content)


def check_small_files(folder: Path, subfolders: Collection[Path], option: str) -> None:
    """Raises ConfigError if a library could not read a text file of the model, would be busy with it for ever, or would
    load code that the file chooses."""
    files = sorted(file for subfolder in subfolders for kind in ("*.json", "*.txt") for file in subfolder.glob(kind))
    for file in files:
        try:
            if file.name.endswith(FILE_INDEX):
                weight_map(file)
            elif file.name == _ADAPTER:
                raise FileFault("makes libraries load the model that it names: merge the adapter, or remove the file")
            elif file.suffix == ".txt":
                file_size(file)
            elif not isinstance(content := read_json(file, _SMALL_FILE_LIMIT, only_finite=False), dict):
                raise FileFault("is not a JSON object")
            elif _TOKENIZER.fullmatch(file.name):
                _check_tokenizer(content)
            elif file.name.endswith("config.json"):
                check_layer_counts(content)
                refuse_chosen_code(content, f"{option}: in the model {str(folder)!r} {file.relative_to(folder)}")
        except (OSError, FileFault) as error:
            raise ConfigError(
                f"{option}: in the model {str(folder)!r} {file.relative_to(folder)} {_reason(error)}.",
                DAMAGED,
            ) from error


def refuse_chosen_code(config: object, label: str) -> None:
    """Raises ConfigError if a config, or a config in it, names code on the hub that a library would load, or a file or
    a repository that it would read.

    An `auto_map` does so only with trust_remote_code, which is always off; the place of a tokenizer_file or vocab_file
    is ignored.
    """
    if isinstance(config, list):
        for part in config:
            refuse_chosen_code(part, label)
    if not isinstance(config, dict):
        return
    for name, value in config.items():
        is_code = name in _CODE_KEYS and value and isinstance(value, str | dict | bool)
        names = value.values() if isinstance(value, dict) else (value,)
        if is_code or (_IMPLEMENTATION.fullmatch(str(name)) and any("/" in str(each) for each in names)):
            what = "code"
        elif _names_a_place(name, value):
            what = "files"
        else:
            refuse_chosen_code(value, label)
            continue
        raise ConfigError(
            f"{label} chooses {what} from elsewhere ({printable(name, 60)} is {printable(value, 100)!r}), which "
            f"{'is' if what == 'code' else 'are'} never loaded.",
            f"Remove {printable(name, 60)} from the file.",
        )


def _names_a_place(name: object, value: object) -> bool:
    texts = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str) and each]
    if name in ("vocab", "merges") and isinstance(value, list):  # the words themselves
        return False
    return bool(texts) and (name in _READ_KEYS or (name in _NAME_KEYS and not all(map(is_plain_name, texts))))


def check_layer_counts(config: Mapping[str, object]) -> None:
    """Raises FileFault if what this config, or one in it, describes is so large that building it would not end."""
    for name, value in config.items():
        most = next((most for names, most in _COUNTS if names.fullmatch(name)), None)
        if most is not None and _largest(value) > most:
            raise FileFault(f"has {printable(name, 60)} {printable(value, 60)}; the most is {most}")
        if isinstance(value, dict) and name not in _WORDS:
            check_layer_counts(value)


def _check_tokenizer(content: Mapping[str, object]) -> None:
    """Raises FileFault if the steps of a tokenizer, one after the other, make a text or its tokens endlessly long."""
    check_layer_counts({"padding": content.get("padding")})
    for part in ("normalizer", "pre_tokenizer", "decoder"):
        growth = 1
        for step in _groups(content.get(part)):
            if step.get("type") == "Replace":  # a regular expression may find something before each character
                growth *= max(1, len(str(step.get("content"))) + ("Regex" in str(step.get("pattern"))))
            elif step.get("type") == "ByteLevel":
                growth *= 2
            if growth > _MOST_GROWTH:
                raise FileFault(f"has a {part} by which a text becomes more than {_MOST_GROWTH:,} times as long")
    for step in _groups(content.get("post_processor")):
        pieces, special = (step.get(name) for name in ("single", "special_tokens"))
        longest = max((len(ids) for each in _groups(special) if isinstance(ids := each.get("ids"), list)), default=1)
        if isinstance(pieces, list) and len(pieces) * longest > _MOST_GROWTH:
            raise FileFault(f"has a post_processor that adds more than {_MOST_GROWTH:,} tokens to each text")


def _groups(value: object) -> Iterator[dict[str, object]]:
    """All groups in a value from JSON, the outer ones first."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _groups(each)


def _largest(value: object) -> float:
    if isinstance(value, list):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int | float) else 0


def _reason(error: OSError | FileFault) -> str:
    return str(error) if isinstance(error, FileFault) else f"cannot be read ({error.strerror})"


def _adapter_in(folder: Path) -> Path | None:
    """A LoRA file in the folder, as Tandem, diffusers and peft save one."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            if is_lora(read_header(file).tensors):
                return file
        except (OSError, FileFault):  # the folder is reported as not a model either way
            continue
    return None


def _check_json_files(folder: Path, component: str, option: str) -> None:
    if not any((folder / component).glob("*.json")):
        raise _incomplete(folder, component, option)


def weight_files(folder: Path, component: str, option: str = "base_model") -> list[Path]:
    """The .safetensors files of one component. Raises ConfigError if it has none."""
    found = sorted((folder / component).glob("*.safetensors"))
    plain = [file for file in found if ".fp16" not in file.name and "non_ema" not in file.name]
    if not (folder / component / "config.json").is_file():
        raise _incomplete(folder, component, option)
    if not found:
        pickled = next((file for file in sorted((folder / component).iterdir()) if file.suffix in PICKLES), None)
        raise _incomplete(folder, component, option) if pickled is None else _pickled(pickled)
    return plain or found


def variant_of(files: list[Path]) -> str | None:
    """diffusers' `variant` of these weight files: "fp16" if their names say so."""
    return "fp16" if any(".fp16" in file.name for file in files) else None


def read_shapes(files: list[Path]) -> dict[str, list[int]]:
    """The shapes of all tensors, by name. Raises ConfigError if a file is truncated or not a safetensors file."""
    shapes = {}
    for file in files:
        try:
            shapes.update({name: entry.shape for name, entry in read_header(file).tensors.items()})
        except FileFault as error:
            raise ConfigError(f"base_model: {str(file)!r} {error}.", "Download or copy it again.") from error
        except OSError as error:
            raise ConfigError(
                f"base_model: {str(file)!r} cannot be read ({error.strerror or error}).", ACCEPTED
            ) from error
    return shapes


def stored_formats(files: Sequence[Path]) -> dict[str, str]:
    """The number format of each floating point tensor with a dimension, as safetensors calls it: F32, BF16, ..."""
    entries = [each for file in files for each in read_header(file).tensors.items()]
    return {name: entry.dtype for name, entry in entries if entry.shape and entry.dtype.startswith(("F", "BF"))}


def open_safetensors(file: Path) -> Any:
    """An open .safetensors file, for use in `with`, to read its tensors; the library ships no types.

    Raises OSError, or FileFault if it is no such file.
    """
    read_header(file)  # before the library maps all of it into memory
    try:
        return safe_open(file, framework="pt")
    except SafetensorError as error:
        raise FileFault(f"is damaged ({printable(error, 200)})") from error


def _incomplete(folder: Path, component: str, option: str = "base_model") -> ConfigError:
    return ConfigError(
        f"{option}: the model in {str(folder)!r} has no {component}: its folder {component!r} is missing or empty.",
        "Copy the whole model folder; on the hub, choose a model with .safetensors weights.",
    )


def _pickled(file: Path) -> ConfigError:
    return ConfigError(
        f"base_model: {str(file)!r} is a pickled file, which can run arbitrary code when it is loaded.",
        "Use the .safetensors file of the model; most are offered as both. To convert one that you trust, load it on "
        "a machine without your data: torch.load(FILE, weights_only=True), then safetensors.torch.save_file.",
    )
