"""What is trained: which submodules, a LoRA, or a new token (textual inversion)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, Final, Literal

from modules.config.patterns import parse_number_patterns
from modules.config.section import Section, setting
from modules.config.sections.submodule import SubmoduleSettings

# Presets of `lora_targets`; anything else is patterns.
UNET_PRESETS: Final = ("kohya", "kohya_conv", "onetrainer")  # of layers that only Stable Diffusion's UNet has
TARGET_PRESETS: Final = ("attention", "attention_mlp", "blocks", "all_linear", "all", *UNET_PRESETS)
MAX_RANK: Final = 4096
MAX_ALPHA: Final = 1_000_000
_PATTERN_SEPARATOR: Final = re.compile(r",(?![^{]*\})")  # a comma within {1,2} belongs to its pattern


class AdapterSettings(Section):
    """Which submodules of the model are trained, and the adapters that are trained."""

    section_title: ClassVar[str] = "Adapters"

    parts: tuple[SubmoduleSettings, ...] = setting(
        (),
        title="Submodules",
        help="Which submodules of the model are trained, each with its own learning rate if you like; those that are "
        "not listed stay frozen. Empty: the family's main submodule, such as the UNet, or the whole model if the "
        "family has none.",
        resume="checked",
    )
    lora_from: str | None = setting(
        None,
        title="Continue from a LoRA",
        help="A LoRA file to continue training, of Tandem or of another program (kohya, diffusers, PEFT). The file "
        "then decides rank, alpha, layers and DoRA. It must be for this base model and of the algorithm that is "
        "chosen, with layers in exactly the submodules that are trained. Empty: a new LoRA.",
        advanced=True,
        depends_on="method=lora",
        picks="file",
        resume="checked",
    )
    lora_from_skip_unread: bool = setting(
        False,
        title="Leave out what cannot be continued",
        help="Tensors of the LoRA file that Tandem cannot train, such as biases, are left out, and named at the start. "
        "Off: such a file is refused.",
        advanced=True,
        depends_on="method=lora & lora_from",
        resume="warn",
    )
    training_adapter: str | None = setting(
        None,
        title="Training adapter",
        help="A LoRA file that the model has while it trains, and not in samples, validations and the saved file. With "
        "an adapter that was made for it, a model that was distilled to generate in few steps (Turbo, schnell) stays "
        "so. Empty: none.",
        advanced=True,
        depends_on="method=lora",
        picks="file",
        resume="checked",
    )
    lora_algorithm: Literal["lora", "loha", "lokr", "oft"] = setting(
        "lora",
        title="Adapter algorithm",
        titles={"lora": "LoRA", "loha": "LoHa", "lokr": "LoKr", "oft": "OFT"},
        help="lora: two small matrices for each layer, which every program reads. loha: the elementwise product of two "
        "such pairs, for a higher rank with as many weights. lokr: a Kronecker product, with the smallest files. oft: "
        "rotates the inputs of linear layers, which keeps the angles between them. Their files are for ComfyUI and "
        "LyCORIS (loha, lokr); oft is read by OneTrainer alone and has to be merged for all other programs.",
        depends_on="method=lora",
        resume="fixed",
    )
    lora_rank: int = setting(
        16,
        title="LoRA rank",
        help="Capacity of the LoRA: the inner size of the two matrices that it adds to a layer. 4 to 16 for a "
        "person or an object, 32 to 128 for a varied style. Twice the rank makes the file twice as large.",
        depends_on="method=lora",
        ge=1,
        le=MAX_RANK,
        resume="fixed",
    )
    lora_alpha: float = setting(
        16.0,
        title="LoRA alpha",
        help="The LoRA's effect is multiplied by alpha / rank, so alpha works like a second learning rate. Usual "
        "values are the rank itself, half of it, or 1.",
        depends_on="method=lora",
        gt=0,
        le=MAX_ALPHA,
        resume="fixed",
    )
    lora_conv_rank: int | None = setting(
        None,
        title="LoRA rank of convolutions (conv_dim)",
        help="The rank in convolutions of 3x3 pixels and more, which lora_targets all and kohya_conv adapt as well. "
        "Usually half of the rank or less, since they have many weights. Empty: the rank of the other layers.",
        advanced=True,
        depends_on="method=lora",
        ge=1,
        le=MAX_RANK,
        resume="fixed",
    )
    lora_conv_alpha: float | None = setting(
        None,
        title="LoRA alpha of convolutions (conv_alpha)",
        help="The alpha in convolutions of 3x3 pixels and more. Empty: that of the other layers.",
        advanced=True,
        depends_on="method=lora",
        gt=0,
        le=MAX_ALPHA,
        resume="fixed",
    )
    lora_rank_pattern: str = setting(
        "",
        title="LoRA rank by layer",
        help="Another rank for some layers: PATTERN = RANK, separated by commas, such as mid_block = 32, attn2 = 8. "
        "Patterns are regular expressions that are searched for in the names of layers; the first one that matches "
        "counts. Empty: all the same.",
        advanced=True,
        depends_on="method=lora",
        resume="fixed",
    )
    lora_alpha_pattern: str = setting(
        "",
        title="LoRA alpha by layer",
        help="Another alpha for some layers: PATTERN = ALPHA, as for the rank. Layers with a rank of their own keep "
        "the alpha of the others without it. Empty: all the same.",
        advanced=True,
        depends_on="method=lora",
        resume="fixed",
    )
    lora_rank_stabilized: bool = setting(
        False,
        title="Rank-stabilized LoRA (rsLoRA)",
        help="Multiplies the LoRA's effect by alpha / sqrt(rank) instead of alpha / rank, so that a high rank learns "
        "as fast as a low one. Files are saved with the alpha that has this effect elsewhere.",
        advanced=True,
        depends_on="method=lora & lora_algorithm=lora|loha|lokr",
        resume="fixed",
    )
    lora_plus_ratio: float = setting(
        1.0,
        title="LoRA+ ratio",
        help="Learning rate of a LoRA's second matrix (B, lora_up) relative to that of the first. 16 is that of the "
        "LoRA+ paper, with a lower learning rate; 1 trains both alike.",
        advanced=True,
        depends_on="method=lora & lora_algorithm=lora",
        ge=1,
        le=1000,
        resume="warn",
    )
    lokr_factor: int | None = setting(
        None,
        title="LoKr factor",
        help="The size of LoKr's small factor: a layer's sides are divided by it, or by the number next below that "
        "divides them. 4 to 16 for more weights, empty for the most even division and the smallest files.",
        advanced=True,
        depends_on="method=lora & lora_algorithm=lokr",
        ge=2,
        le=1024,
        resume="fixed",
    )
    oft_block_size: int = setting(
        32,
        title="OFT block size",
        help="How many inputs of a layer are rotated with one another. Larger changes more, with more weights and "
        "time. Where a layer's inputs cannot be divided by it, the nearest number that divides them is used.",
        advanced=True,
        depends_on="method=lora & lora_algorithm=oft",
        ge=2,
        le=1024,
        resume="fixed",
    )
    lora_dropout: float = setting(
        0.0,
        title="LoRA dropout",
        help="Fraction of the LoRA's inputs that is dropped at random in each step, which reduces overfitting. 0 "
        "switches it off, 0.1 is usual.",
        advanced=True,
        depends_on="method=lora",
        ge=0,
        lt=1,
        resume="warn",
    )
    lora_targets: str = setting(
        "attention",
        title="LoRA target modules",
        help="attention: the attention layers, the usual choice. attention_mlp: the feed-forward layers as well. "
        "blocks: all linear layers of the repeated blocks, so modulation, too. all_linear: every linear layer. all: "
        "convolutions as well, for styles and textures. For Stable Diffusion's UNet: kohya: what kohya's LoRA adapts, "
        "attention_mlp and the layers around it (proj_in, proj_out); kohya_conv: its LoCon (LoRA-C3Lier), with the "
        "residual blocks and their convolutions; onetrainer: OneTrainer's attn-mlp. Or regular expressions separated "
        "by commas, which are searched for in the names of layers, such as mid_block, up_blocks.*attn2.",
        depends_on="method=lora",
        min_length=1,
        resume="fixed",
    )
    lora_weight_decompose: bool = setting(
        False,
        title="DoRA (weight-decomposed LoRA)",
        help="Trains direction and magnitude of every layer separately, which comes closer to full fine-tuning at a "
        "low rank. Slower by about a third, and not every program reads such files.",
        depends_on="method=lora",
        resume="fixed",
    )
    embedding_token: str = setting(
        "<concept>",
        title="Placeholder token (new word)",
        help="The word that is trained, exactly as in captions and prompts. Choose one without spaces that means "
        "nothing yet, such as <my-cat>.",
        depends_on="method=embedding",
        min_length=1,
        resume="fixed",
    )
    embedding_init: str = setting(
        "object",
        title="Initializer words",
        help="Words whose embeddings the new token starts from, such as cat or painting: the closer their meaning, "
        "the sooner it is learned.",
        depends_on="method=embedding",
        min_length=1,
    )
    embedding_vectors: int = setting(
        1,
        title="Vectors per token",
        help="Capacity of the new token. Each vector takes the place of one token in every prompt; 1 to 4 for an "
        "object, up to 10 for a style.",
        unit="vectors",
        depends_on="method=embedding",
        ge=1,
        le=64,
        resume="fixed",
    )


def target_patterns(lora_targets: str) -> list[str]:
    """The regular expressions in `lora_targets`, if it is not a preset."""
    return [pattern for part in _PATTERN_SEPARATOR.split(lora_targets) if (pattern := part.strip())]


def parse_rank_pattern(text: str) -> list[tuple[str, int]]:
    """The patterns and ranks of `lora_rank_pattern`. Raises ValueError with the rest of a sentence."""
    found = parse_number_patterns(text, "RANK", "mid_block = 32", MAX_RANK, whole=True)
    return [(pattern, int(rank)) for pattern, rank in found]


def parse_alpha_pattern(text: str) -> list[tuple[str, float]]:
    """The patterns and alphas of `lora_alpha_pattern`. Raises ValueError with the rest of a sentence."""
    return parse_number_patterns(text, "ALPHA", "mid_block = 16", MAX_ALPHA)


def unknown_submodules(named: Sequence[object], family: str, known: Sequence[str]) -> list[tuple[str, str]]:
    """For each submodule that the family does not have: a pair of field and rest of the sentence."""
    has = f"has {', '.join(known)}" if known else "has no submodules: all of it is trained. Leave parts empty"
    return [
        (f"parts.{index}.part", f"is {name!r}; the family {family!r} {has}")
        for index, name in enumerate(named)
        if name not in known
    ]
