"""Facts about the model families: one torch-free record for each file of modules/families.

The window, importers, file formats and estimates of memory know families by these records only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final, Literal

_LORA: Final = re.compile(r"(^|[._])(lora|hada|lokr|oft)[._]")
PROGRAM: Final = "program"  # the family of runs that a user's own program has started (modules/library)
GGUF: Final = ".gguf"
FILE_INDEX: Final = ".safetensors.index.json"  # of a model in several files
MODEL_FILES: Final = (".safetensors", GGUF, FILE_INDEX)  # how the names of models end that are no folders
# Before all names of a transformer's tensors: in files of ComfyUI and of programs that save what they train, in Cosmos'
# code and in diffusers' pipelines.
PREFIXES: Final = ("model.diffusion_model.", "diffusion_model.", "net.", "transformer.")
# Settings of a model_index.json that make another model of a pipeline's class.
_MARKS: Final = ("expand_timesteps", "boundary_ratio")

Config = Mapping[str, Any]
Shapes = Mapping[str, Sequence[int]]
Network = Literal["unet", "transformer", "other"]


@dataclass(frozen=True)
class KnownModel:
    """What is known of a model on the hub before anything of it is downloaded.

    Configurations are those of its own config.json, as far as they differ from the defaults of their diffusers and
    transformers classes.
    """

    networks: Mapping[str, Config]  # those that can be trained, by component
    # billions of parameters, rounded to 10 million, of the other networks that may stay frozen, by component
    frozen: Mapping[str, float]
    # large text encoders, by component: the name of the transformers class, and the configuration
    encoders: Mapping[str, tuple[str, Config]] = field(default_factory=dict)
    resolution: int = 0  # in pixels, that it generates at, if not that of its family
    trained_instead: str = ""  # of one that was distilled to few steps: the model on the hub that people train
    family: str = ""  # `known_models` fills it in


@dataclass(frozen=True)
class WholeModel:
    """A type of whole models in one file."""

    title: str
    prefix: str  # of names of tensors that no other type has
    kohya_version: str  # its ss_base_model_version in headers of sd-scripts
    resolution: int  # in pixels, its default, as in sd-scripts (library/sai_model_spec.py)


@dataclass(frozen=True)
class TransformerFile:
    """How files of a transformer's own code, which ComfyUI reads, name its tensors."""

    names: Mapping[str, str]  # diffusers' -> those; * is a block's number, and without .weight or .bias both are meant
    signature: str  # a tensor that is in every such file
    prefix: str = ""  # of all names in published files
    # Layers that calculate (scale, shift) in diffusers and (shift, scale) there, in the last block as well.
    swapped: str = ""
    swapped_in_last_block: str = ""
    is_grouped: bool = False  # keys and values are narrower than queries
    keeps_other_names: bool = False  # tensors that are not among `names` have diffusers' names
    mlp_rows: int = 0  # of models of double and single blocks: of an MLP's first layer, in widths of the model
    # Whether a layer of this name there (_ for dots, * for the number of its block), with so many rows and columns, is
    # this model's; None if that does not tell. Only for models that share all names with another.
    is_own: Callable[[str, int, int], bool | None] | None = None
    is_rarer: bool = False  # than another model with the same names: what fits both is taken for the other's


@dataclass(frozen=True)
class ReferenceFacts:
    """What an edit model takes as the images that its caption is about."""

    most: int  # images for one caption
    side: int  # pixels: the square root of the area that references usually have
    # (width, height) of that area: the one of nearest shape is used. None: they keep their shape, up to 8:1.
    sizes: tuple[tuple[int, int], ...] = ()
    multiple: int = 0  # without `sizes`: sides are rounded to multiples of it; 0: down to those of the transformer
    largest: int | None = None  # the largest side that diffusers' pipeline takes, if that is limited
    required: bool = True  # other trainers train the model with references only
    seen_by_text: bool = False  # the text encoder sees them, too, so that a caption's states depend on them
    seen_side: int = 0  # pixels: likewise, of what text encoders see that do not see them as the transformer does

    def size(self, width: int, height: int, side: int, step: int) -> tuple[int, int]:
        """(width, height) that a reference of such a width and height is scaled to: about side², multiples of `step`.

        At the usual side, the choice of diffusers' pipeline."""
        if not self.sizes:  # no larger than side², which the pipeline would scale down; its smallest side is 64
            across = side * math.sqrt(min(max(width / height, 1 / 8), 8))
            if near := self.multiple:
                return max(near, round(across / near) * near), max(near, round(side**2 / across / near) * near)
            sides = max(64, int(across) // step * step), max(64, int(side**2 / across) // step * step)
            across, down = (min(each, 8 * min(sides)) for each in sides)  # rounding down changes the shape
            return across, down
        _, *found = min((abs(width / height - across / down), across, down) for across, down in self.sizes)
        across, down = (max(step, round(each * side / self.side / step) * step) for each in found)
        return across, down


@dataclass(frozen=True)
class ClipFacts:
    """What a model of videos takes as a clip; an image is a clip of one frame."""

    step: int  # clips have 1 + n times as many frames
    rate: float  # frames per second that its clips usually have
    # It continues an image: samples take one as their first frame, and clips may be trained with theirs given.
    first_frame: bool = False


@dataclass(frozen=True)
class FamilyFacts:
    """What is known of a family without importing its file."""

    about: str  # for people: "NAME by MAKER: 6 B parameters (12 GB in bf16), LICENCE.", or "NAME: what it is."
    network: Network = "other"
    # Its place among the window's tiles, 1 the first: our estimate of how many people train it, not a statistic.
    popularity: int = 99
    resolution: int = 1024  # in pixels, that its models generate at; the usual limit of what is trained from scratch
    size_step: int = 0  # pixels; sides of images are multiples of it. 0: of the step of all with such a network
    draws_samples: bool = True  # whether it generates images
    learns_classes: bool = False  # whether it learns which class an image is of: its folders, or its captions
    # The pipelines of diffusers whose models it trains, as `pipeline_of` names them, the plain one first, and the text
    # encoders with their tokenizers.
    pipelines: tuple[str, ...] = ()
    encoders: Mapping[str, str] = field(default_factory=dict)
    processor: str = ""  # the component that prepares images for a text encoder that sees them
    arguments: Mapping[str, object] = field(default_factory=dict)  # of the pipeline's constructor, besides components
    transformer: str = ""  # its class in diffusers
    references: ReferenceFacts | None = None  # of a model that edits images; None: it takes none
    clips: ClipFacts | None = None  # of a model of videos; None: it trains on images alone
    # Pattern for the last words of the names of its feed-forward layers, unless they are named as in most transformers:
    # ff.net (modules/training/methods/lora.py).
    feed_forward: str = ""
    models: Mapping[str, KnownModel] = field(default_factory=dict)  # by their names on the hub

    # How its files are recognised.
    whole_models: Mapping[str, WholeModel] = field(default_factory=dict)  # by what headers call them
    # Patterns of layers in LoRAs and transformers' files, in diffusers' classes and in the model's own code, with dots
    # as underscores. The first are of this model alone; a later one counts where no family's earlier ones occur.
    layers: tuple[str, ...] = ()
    # The model on the hub that a transformer's file lacks only the transformer of: from the shapes of its tensors, and
    # the file's name in lower case, which tells apart models of equal shapes.
    hub_model_of: Callable[[Shapes, str], str] | None = None
    file: TransformerFile | None = None
    is_unknown_to_comfyui: bool = False  # ComfyUI does not know diffusers' names of its layers

    # What headers of files call it (`modelspec.architecture`).
    architecture: str = ""
    # In lower case, the beginnings of all that are known; the first is that of a LoRA that only its layers identify.
    architectures: tuple[str, ...] = ()
    # That of a variant, from the transformer's config and the name of its pipeline's class.
    variant: Callable[[Config, str], str] | None = None
    code: str = ""  # address of the code, or of the model, whose files have the original layout

    # What OneTrainer, ai-toolkit, SimpleTuner, diffusion-pipe and sd-scripts call it, in lower case with underscores.
    aliases: tuple[str, ...] = ()
    has_guidance: bool = False  # an input of distilled models
    # The blocks of its models, refiners included, that `block_offload` counts: by words that are all in the name of a
    # file or folder; none for a family of one size.
    blocks: Mapping[tuple[str, ...], int] = field(default_factory=dict)
    # SimpleTuner's model_flavour -> the model (helpers/models/*/model.py, HUGGINGFACE_PATHS); its default is first.
    simple_tuner: Mapping[str, str] = field(default_factory=dict)
    simple_tuner_assisted: tuple[str, ...] = ()  # those that it trains with an adapter (ASSISTANT_LORA_FLAVOURS)
    # Layers that their LoRAs adapt, as `lora_targets`, if not those named there: attention (DEFAULT_LORA_TARGET) and
    # blocks (get_transformer_block_names).
    simple_tuner_layers: str = "attention"
    ai_toolkit_layers: str = "blocks"
    # musubi-tuner's network module (networks/lora_*.py), the layers that it adapts, as `lora_targets`, values of its
    # model_version with the model that each means, if that is to be told, and those that Tandem does not have.
    musubi_module: str = ""
    musubi_layers: str = "blocks"
    musubi_versions: Mapping[str, str] = field(default_factory=dict)
    musubi_others: Mapping[str, str] = field(default_factory=dict)
    # diffusion-pipe's type, if that is another family's, and the pattern of the names of this one's files.
    diffusion_pipe: tuple[str, str] | None = None
    kohya_file: str = ""  # the setting for a file that only its scripts in sd-scripts ask for
    # In OneTrainer (modules/util/enum/ModelType.py, modules/modelSetup): its text encoders, the last of which is the
    # large one, whether they are trained unless switched off, and the shift by resolution: Tandem's, another, or none.
    onetrainer_encoders: int = 1
    onetrainer_trains_encoders: bool = False
    onetrainer_shift: Literal["same", "other", "none"] = "same"

    @property
    def has_base_model(self) -> bool:
        """Whether its models are trained further; others are trained from scratch."""
        return bool(self.pipelines)

    @property
    def pipeline_class(self) -> str:
        """The class of its plain pipeline."""
        return self.pipelines[0].partition(" ")[0]

    @property
    def sample_images(self) -> int:
        """How many images a sample may be generated from: references, or its first frame."""
        if self.references is not None:
            return self.references.most
        return int(self.clips is not None and self.clips.first_frame)

    @property
    def components(self) -> tuple[str, ...]:
        """The components, and so the subfolders, that training needs."""
        processors = (self.processor,) if self.processor else ()
        return (self.network, "vae", *self.encoders, *self.encoders.values(), *processors, "scheduler")

    def architecture_of(self, transformer: Config, pipeline: str) -> str:
        """That of a model whose transformer has this config, in a pipeline of this class."""
        return self.architecture if self.variant is None else self.variant(transformer, pipeline)


def pipeline_of(index: Mapping[str, object]) -> str:
    """The pipeline of this model_index.json: its class, and what makes it another model than others of that class."""
    return " with ".join([str(index.get("_class_name")), *(mark for mark in _MARKS if index.get(mark))])


def hub_model_by_name(words: Mapping[str, str], otherwise: str) -> Callable[[Shapes, str], str]:
    """`FamilyFacts.hub_model_of` for models of equal shapes: the one whose word is in the file's name."""
    return lambda shapes, file_name: next((name for word, name in words.items() if word in file_name), otherwise)


def in_blocks(ours: str, theirs: str, names: Mapping[str, str]) -> dict[str, str]:
    """`TransformerFile.names` of layers in the blocks that diffusers calls `ours`."""
    return {f"{ours}.*.{name}": f"{theirs}.*.{original}" for name, original in names.items()}


def has(names: Iterable[str], *parts: str) -> bool:
    """Whether any of the names contains any of the parts."""
    return any(part in name for name in names for part in parts)


def family_names() -> list[str]:
    """The names of the built-in families, sorted: those of the files in this folder without an underscore."""
    return sorted(file.stem for file in Path(__file__).parent.glob("*.py") if not file.name.startswith("_"))


@cache
def known_models() -> Mapping[str, KnownModel]:
    """Models that people train, known without a network, by their names on the hub."""
    return {
        name: replace(model, family=family)
        for family, facts in all_facts().items()
        for name, model in facts.models.items()
    }


def known_model(name: str) -> KnownModel | None:
    """The model of this hub name (owner/model or owner/model@revision); None if it is not known."""
    wanted = name.partition("@")[0].lower()
    return next((model for known, model in known_models().items() if known.lower() == wanted), None)


def named_family(names: Iterable[str]) -> str:
    """The family that the layers in a LoRA or a transformer's file show, "A or B" if two share them; else empty."""
    flat = [name.replace(".", "_") for name in names]
    known = all_facts().items()
    for patterns in zip_longest(*(facts.layers for _, facts in known), fillvalue=""):
        found = [
            family
            for (family, _), pattern in zip(known, patterns, strict=True)
            if pattern and any(map(re.compile(pattern).search, flat))
        ]
        if found:
            return " or ".join(found)
    return ""


def is_lora(names: Iterable[str]) -> bool:
    """Whether a file with tensors of these names is a LoRA or its kin."""
    return any(map(_LORA.search, names))


def file_prefix(names: Collection[str]) -> str:
    """What is before the names of the transformer's tensors in a file with these; empty for nothing."""
    return next((prefix for prefix in PREFIXES if any(name.startswith(prefix) for name in names)), "")


def shares_files(first: str, second: str) -> bool:
    """Whether transformers' files of these built-in families cannot be told apart by their tensors."""
    one, other = (all_facts().get(name) for name in (first, second))
    if one is None or other is None or one.file is None or other.file is None:
        return False
    return one.transformer == other.transformer and one.file.signature == other.file.signature


def family_of_file(names: Iterable[str], file_name: str) -> str:
    """The family that the layers in a transformer's file show, or the one with the same layers that its name shows."""
    named, words = named_family(names), file_name.lower()
    likely = (
        family
        for family, facts in all_facts().items()
        if family != named
        and shares_files(named, family)
        and facts.file is not None
        and facts.file.is_rarer
        and any(alias in words for alias in facts.aliases)
    )
    return next(likely, named)


def hub_model_of(family: str, shapes: Shapes, file_name: str) -> str:
    """The model on the hub that a transformer's file of this family lacks only the transformer of; empty if none is
    known."""
    facts = all_facts().get(family)
    return "" if facts is None or facts.hub_model_of is None else facts.hub_model_of(shapes, file_name.lower())


def family_of_architecture(architecture: str) -> str:
    """The family of models with this modelspec architecture; empty if there is none."""
    starts = {start: family for family, facts in all_facts().items() for start in facts.architectures}
    known = [start for start in starts if architecture.lower().startswith(start)]
    return starts[max(known, key=len)] if known else ""


def whole_models() -> Mapping[str, WholeModel]:
    """Those of all families, by what headers call them."""
    return {name: model for facts in all_facts().values() for name, model in facts.whole_models.items()}


def whole_model(names: Collection[str]) -> tuple[str, str]:
    """The title and the family of a whole model in one file with tensors of these names; empty if unknown."""
    return next(
        (
            (model.title, family)
            for family, facts in all_facts().items()
            for model in facts.whole_models.values()
            if any(name.startswith(model.prefix) for name in names)
        ),
        ("", ""),
    )


@cache
def all_facts() -> Mapping[str, FamilyFacts]:
    """The facts of the built-in families, by name."""
    return {name: import_module(f"modules.facts.{name}").FACTS for name in family_names()}
