"""Text encoders in files of their own, as ComfyUI uses them (models/text_encoders), and as llama.cpp's GGUF."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from modules.config import ConfigError
from modules.diffusion.fitting_weights import described_network, is_used, of_more_blocks
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.model_files.open_file import open_model_file, shapes_of_file
from modules.diffusion.model_files.tensor_file import TensorFile
from modules.facts import GGUF, FamilyFacts
from modules.files import printable

FILES: Final = "family_options.text_encoder_files"
_SAME: Final = "Give the file of the text encoder that the model has, or another layout."
# Before the names of a language model's tensors: programs and versions of transformers nest them differently.
_NESTING: Final = re.compile(r"^(model\.|language_model\.|text_model\.|transformer\.)+")
_FP8: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
_CLIP_L: Final = 768  # wide; CLIP-G has 1280
# llama.cpp's names (gguf-py/gguf/tensor_mapping.py) of what transformers calls so.
_GGUF_BLOCK: Final = re.compile(r"(enc\.)?blk\.(\d{1,4})\.(\w+)\.(weight|bias)")
_OF_T5: Final = {
    **{f"attn_{part}": f"layer.0.SelfAttention.{part}" for part in "qkvo"},
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias",
    "attn_norm": "layer.0.layer_norm",
    "ffn_gate": "layer.1.DenseReluDense.wi_0",
    "ffn_up": "layer.1.DenseReluDense.wi_1",
    "ffn_down": "layer.1.DenseReluDense.wo",
    "ffn_norm": "layer.1.layer_norm",
}
_OF_QWEN: Final = {
    **{f"attn_{part}": f"self_attn.{part}_proj" for part in "qkv"},
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    **{f"ffn_{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
    "ffn_norm": "post_attention_layernorm",
}
_OF_WHOLE: Final = {
    "enc.output_norm.weight": "encoder.final_layer_norm.weight",
    "output_norm.weight": "norm.weight",
    "output.weight": "lm_head.weight",
}


def encoder_files(names: str, facts: FamilyFacts) -> dict[str, Path]:
    """Of the files in the setting, separated by commas, those of each text encoder of a family, by component.

    Raises ConfigError for a file that is none of them.
    """
    found: dict[str, Path] = {}
    for name in filter(None, (each.strip() for each in names.split(","))):
        file = Path(name)
        try:
            component = _component(shapes_of_file(file), facts, found)
        except ConfigError as error:
            raise ConfigError(f"{FILES}: {error.message}", error.advice) from error
        if not component or component in found:
            what = f"is {component}, as is {str(found[component])!r}" if component else "is none of this family's"
            raise ConfigError(
                f"{FILES}: {name!r} {what}.",
                "Give one file for each text encoder, separated by commas.",
            )
        found[component] = file
    return found


def _component(shapes: Mapping[str, list[int]], facts: FamilyFacts, taken: Collection[str]) -> str:
    """The component of the family that a file is; empty for none. Of several CLIPs, the first that is not `taken`."""
    large = {name: kind for model in facts.models.values() for name, (kind, _) in model.encoders.items()}
    names = {_bare(name) for name in shapes}
    if any(name.startswith(("encoder.block.0.", "enc.blk.0.")) for name in names):
        return next((name for name in facts.encoders if "T5" in large.get(name, "")), "")
    if any(name.startswith(("layers.0.self_attn.", "blk.0.attn_q.")) for name in names):
        return next((name for name in facts.encoders if "T5" not in large.get(name, "T5")), "")
    width = next((shape[-1] for name, shape in shapes.items() if name.endswith("token_embedding.weight")), 0)
    clips = [name for name in facts.encoders if name not in large]
    if not width or not clips:
        return ""
    return clips[-1] if width > _CLIP_L else next((name for name in clips if name not in taken), clips[0])


def check_encoder_file(file: Path, component: str, network: nn.Module, place: str) -> None:
    """Compare the names and shapes in `file` with those of a text encoder, also on the meta device; `place` is the
    model with its configuration, for messages. Raises ConfigError as `load_encoder_file` does."""
    with open_model_file(file) as source:
        _matched(source, component, network, place)


def load_encoder_file(file: Path, folder: Path, component: str, kind: Any, dtype: torch.dtype | None) -> nn.Module:
    """A text encoder of transformers' class `kind` with the config in `folder`, on the CPU, in `dtype`, or in the one
    half-precision format of the file.

    Raises ConfigError if the file has not its tensors.
    """
    label = f"{FILES}: {component} of the model in {str(folder)!r} cannot be loaded from {str(file)!r}"
    with open_model_file(file) as source:
        with damage_refused(label), torch.device("meta"):
            described = described_network(folder, component, kind)
        found = _matched(source, component, described, str(folder))
        kept = dtype or next((d for d in map(source.stored_dtype, source.names) if d == torch.float16), torch.bfloat16)
        state: dict[str, Tensor] = {}
        for key, name in found.items():
            stored = source.read(name)
            state[key] = stored.to(kept) if stored.dtype in _FP8 else stored
    with damage_refused(label):
        config = kind.config_class.from_pretrained(folder, subfolder=component, local_files_only=True)
        config.__dict__.pop("quantization_config", None)
        network: nn.Module = kind.from_pretrained(None, config=config, state_dict=state, dtype=kept)
        return network


def _matched(source: TensorFile, component: str, network: nn.Module, place: str) -> dict[str, str]:
    """By the names of the network's tensors those in the file. Raises ConfigError if they are not those."""
    tensors = network.state_dict(keep_vars=True)
    wanted = {_bare(key): key for key in tensors}
    names = {name: name for name in source.names}
    if source.path.suffix.lower() == GGUF:
        names = _names_of_gguf(source, str(getattr(network.config, "model_type", "")))
    found: dict[str, str] = {}
    left = []
    for name, original in names.items():
        key = wanted.get(_bare(original))
        if key is None:
            left.append(original)
            continue
        found[key] = name
        if source.shape(name) != tuple(tensors[key].shape) or not source.stored_dtype(name).is_floating_point:
            raise ConfigError(
                f"{FILES}: {str(source.path)!r}: {name!r} has the shape {[*source.shape(name)]} in "
                f"{str(source.stored_dtype(name)).removeprefix('torch.')}, but {component} of the model {place!r} "
                f"requires {[*tensors[key].shape]}.",
                _SAME,
            )
    own = {id(tensors[key]) for key in found}  # some are one tensor with two names
    lost = [key for key, tensor in tensors.items() if id(tensor) not in own and is_used(key)]
    surplus = of_more_blocks(names.values(), left)
    if lost or surplus:
        what = f"has no {lost[0]!r}, which" if lost else f"has {printable(surplus, 200)!r}, for which"
        need = "needs" if lost else "has no place"
        raise ConfigError(f"{FILES}: {str(source.path)!r} {what} {component} of the model {place!r} {need}.", _SAME)
    return found


def _names_of_gguf(source: TensorFile, model_type: str) -> dict[str, str]:
    """The names of a GGUF's tensors in transformers. Raises ConfigError for models whose weights llama.cpp changes."""
    if not model_type.startswith(("t5", "qwen")):
        raise ConfigError(
            f"{FILES}: {str(source.path)!r} is a GGUF file, of which Tandem reads the text encoders T5 and Qwen, and "
            f"not {printable(model_type, 60)}.",
            "Use the .safetensors file of the same text encoder.",
        )
    of_blocks = _OF_T5 if model_type.startswith("t5") else _OF_QWEN
    block = "encoder.block." if model_type.startswith("t5") else "layers."
    whole = {**_OF_WHOLE, "token_embd.weight": "shared.weight" if "t5" in model_type else "embed_tokens.weight"}
    found = {}
    for name in source.names:
        part = _GGUF_BLOCK.fullmatch(name)
        if part is not None and part[3] in of_blocks:
            found[name] = f"{block}{part[2]}.{of_blocks[part[3]]}.{part[4]}"
        else:
            found[name] = whole.get(name, name)
    return found


def _bare(name: str) -> str:
    return _NESTING.sub("", name)
