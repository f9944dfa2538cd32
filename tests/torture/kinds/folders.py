"""Every file in the folders of base models, captioners, taggers and mask models, read as dry runs, runs and annotation
do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Final

import onnx
import torch
from PIL import Image

from modules.annotators import caption, mask
from modules.annotators.caption import Captioner
from modules.annotators.mask import Masker, MaskShape
from modules.annotators.model_folder import model_folder
from modules.annotators.tags import TagChoice, Tagger
from modules.config import ConfigError, TandemError, TrainConfig
from modules.families._by_name import family_class
from modules.families._flow_transformer import FlowTransformer
from tests.annotators.tiny_models import tiny_blip, tiny_clipseg
from tests.annotators.tiny_tagger import tiny_tagger
from tests.classes import CLASSES, TINY_NETWORK
from tests.families.tiny_flow_pipelines import tiny_sd3, tiny_z_image
from tests.families.tiny_pipelines import tiny_sd
from tests.torture.kind import Places
from tests.torture.mutations import (
    NUMBERS,
    OTHERS,
    WORDS,
    bytes_changed,
    file_changed,
    file_replaced,
    json_changed,
    json_text,
    safetensors_changed,
    text_changed,
)

_CPU: Final = torch.device("cpu")
_TINY_UNET: Final = {"width": 8, "patch": 1, "tokens": 6, "vocabulary": 64}
# what may choose code, files or repositories, or is known to no reader
_KEYS: Final = (
    "auto_map", "unknown", "attn_implementation", "quantization_config", "kernel_config", "custom_pipeline",
    "tokenizer_class", "processor_class", "tokenizer_file", "vocab_file", "chat_template", "added_tokens_decoder",
    "extra_special_tokens", "_name_or_path", "dtype", "architectures", "_class_name", "config", "__class__",
)  # fmt: skip


class Fuzzer:
    """See `Kind`."""

    def __init__(self, places: Places) -> None:
        self._places = places
        for name, (write, _) in _MODELS.items():
            write(places.seeds / name)
        for name, (_, read) in _MODELS.items():  # imports what is imported only then
            read(places.seeds / name)

    def make(self, draw: Random) -> None:
        name = draw.choice(sorted(_MODELS))
        folder = Path(shutil.copytree(self._places.seeds / name, self._places.case / name))
        paths = sorted(path for path in folder.rglob("*"))
        for path in draw.choices(paths, k=draw.choice((1, 1, 1, 2))):
            if draw.random() < 0.15:
                file_replaced(path, self._places.outside, draw)
            elif path.suffix == ".safetensors":
                file_changed(path, safetensors_changed if draw.random() < 0.8 else bytes_changed, draw)
            elif path.suffix == ".onnx":
                file_changed(path, self._onnx_changed if draw.random() < 0.6 else bytes_changed, draw)
            elif path.suffix == ".csv":
                file_changed(path, _text_changed if draw.random() < 0.8 else bytes_changed, draw)
            elif draw.random() < 0.3:
                file_changed(path, _key_added, draw)
            else:
                file_changed(path, json_changed if draw.random() < 0.8 else bytes_changed, draw)

    def read(self) -> str:
        (folder,) = self._places.case.iterdir()
        try:
            _MODELS[folder.name][1](folder)
        except ConfigError as error:
            return str(error)
        except TandemError as error:
            raise AssertionError(f"it ends with {error.exit_code}") from error
        return ""

    def _onnx_changed(self, data: bytes, draw: Random) -> bytes:
        with suppress(Exception):  # of protobuf: it was mutated before
            model = onnx.load_from_string(data)
            _model_changed(model, self._places.outside, draw)
            return bytes(model.SerializeToString())
        return data


def _model_changed(model: onnx.ModelProto, outside: Path, draw: Random) -> None:
    """A model of ONNX with other sizes or operations, or whose numbers are elsewhere."""
    tensor = draw.choice(model.graph.initializer)
    size = draw.choice((0, -1, 1, 3, 1 << 20, 1 << 31, 1 << 40, (1 << 63) - 1))
    match draw.choice(("elsewhere", "elsewhere", "stored", "declared", "operation")):
        case "elsewhere":
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.ClearField("float_data")
            place = draw.choice((str(outside / "canary.txt"), "../../outside/canary.txt", "/dev/zero", "model.onnx"))
            for key, value in (("location", draw.choice((place, draw.choice(WORDS)))), ("length", str(size))):
                tensor.external_data.add(key=key, value=value.encode(errors="replace").decode())
        case "stored":
            tensor.dims[draw.randrange(len(tensor.dims))] = size
        case "declared":
            value = draw.choice((*model.graph.input, *model.graph.output))
            draw.choice(value.type.tensor_type.shape.dim).dim_value = size
        case "operation":
            node = draw.choice(model.graph.node)
            node.op_type = draw.choice(("ConstantOfShape", "Tile", "Expand", "Loop", "If", "Range", "unknown"))


def _text_changed(data: bytes, draw: Random) -> bytes:
    return text_changed(data.decode(errors="replace"), draw)


def _key_added(data: bytes, draw: Random) -> bytes:
    """JSON with one more key in one of its groups."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return data
    groups, inner = [], [found]
    while inner:
        value = inner.pop()
        groups += [value] if isinstance(value, dict) else []
        inner += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    if groups:
        value = draw.choice((*NUMBERS[:12], *OTHERS))
        group = groups[0] if draw.random() < 0.5 else draw.choice(groups)
        group[draw.choice(_KEYS)] = draw.choice(WORDS) if draw.random() < 0.4 else f"\x01{value}\x01"
    return json_text(found)


def _exported(family: str, options: Mapping[str, object]) -> Callable[[Path], Path]:
    """A folder as this family saves it, with new weights."""

    def write(folder: Path) -> Path:
        folder.mkdir()
        model = family_class(family).load(TrainConfig.model_validate({"family": family, "family_options": options}))
        model.export(model.model.state_dict(), folder)
        return folder

    return write


def _train(family: str, method: str = "lora") -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        settings = {"family": family, "base_model": str(folder), "resolution": 64, "method": method}
        config, kind = TrainConfig.model_validate(settings), family_class(family)
        before = (kind.base_model_notes, kind.noise_levels, kind.check_small_parts)
        steps = (*before, kind.meta_encoder, kind.frozen_networks, _load)
        refused = [error for error in (_refusal(step, config) for step in steps) if error is not None]
        if refused:
            raise refused[0]

    return read


def _refusal(step: Callable[[TrainConfig], object], config: TrainConfig) -> ConfigError | None:
    try:
        step(config)
    except ConfigError as error:
        return error
    return None


def _load(config: TrainConfig) -> None:
    """The text encoders, too, which families of flow matching load when they need them."""
    loaded = family_class(config.family).load(config)
    if isinstance(loaded, FlowTransformer):
        loaded.components.load_encoders(torch.float32, _CPU)


def _caption(folder: Path) -> None:
    found = model_folder(str(folder), "transformers", caption.MODEL_TYPES)
    Captioner(found, _CPU, torch.float32, prompt="", max_tokens=5, name="tiny")


def _mask(folder: Path) -> None:
    found = model_folder(str(folder), "transformers", mask.MODEL_TYPES)
    Masker(found, _CPU, torch.float32, prompts=["a"], shape=MaskShape(), name="tiny")


def _tag(folder: Path) -> None:
    found = model_folder(str(folder), "tagger")
    try:
        Tagger(found, TagChoice(), on_gpu=False, name="tiny")([Image.new("RGB", (20, 30), "red")])
    except RuntimeError as error:  # at one image, which `propose` reports
        raise ConfigError("the model fails at this image") from error


_MODELS: Final[Mapping[str, tuple[Callable[[Path], Path], Callable[[Path], None]]]] = {
    "blip": (tiny_blip, _caption),
    "classifier": (
        _exported("classifier", {**TINY_NETWORK, "classes": "\n".join(CLASSES)}),
        _train("classifier", "fine_tune"),
    ),
    "clipseg": (tiny_clipseg, _mask),
    "pixel_diffusion": (_exported("pixel_diffusion", _TINY_UNET), _train("pixel_diffusion")),
    "sd": (tiny_sd, _train("stable_diffusion")),
    "sd3": (tiny_sd3, _train("stable_diffusion_3")),
    "tagger": (tiny_tagger, _tag),
    "z_image": (tiny_z_image, _train("z_image")),
}
