"""The components of a flow-matching pipeline of diffusers: found by its model_index.json, checked, loaded and saved."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from torch import nn

from modules.config import ConfigError
from modules.diffusion import base_model_files
from modules.diffusion.chat_template import limit_template_
from modules.diffusion.component_files import copy_with_weights, load_network, load_part, scheduler_config
from modules.diffusion.encoder_weights import move_encoder, quantize_encoder_
from modules.diffusion.finite import require_finite
from modules.diffusion.fitting_weights import described_network
from modules.diffusion.hub.files import INDEX
from modules.diffusion.hub.model import HubModel
from modules.diffusion.image_processors import load_image_processor
from modules.diffusion.library_errors import damage_refused
from modules.diffusion.model_files.encoder_file import check_encoder_file, encoder_files, load_encoder_file
from modules.diffusion.pipeline_classes import component_classes
from modules.diffusion.quantized_networks import (
    describe_quantized_,
    load_quantized_encoder,
    load_quantized_transformer,
    quantized_layers,
)
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.diffusion.samplers import build_scheduler
from modules.diffusion.stored_dtype import SAFETENSORS_HALF, dtype_of
from modules.diffusion.transformer_files.base import FlowBase, base_of_file
from modules.diffusion.transformer_files.loading import load_transformer_file
from modules.facts import FamilyFacts, known_model
from modules.files import FileFault, open_regular, read_json


@dataclass
class FlowComponents:
    """A model folder with its networks, on the CPU; text encoders are loaded when they are needed."""

    folder: Path
    facts: FamilyFacts
    pipeline_class: Any
    classes: Mapping[str, Any]
    transformer: Any
    vae: Any
    scheduler: dict[str, Any]  # its config
    tokenizers: Mapping[str, Any]  # by their own names
    index: Mapping[str, Any]  # model_index.json
    encoder_files: Mapping[str, Path] = field(default_factory=dict)  # of those that are not in the folder

    def load_encoders(self, dtype: torch.dtype, device: torch.device, weights: str = "run") -> dict[str, nn.Module]:
        """The text encoders, frozen, large ones quantised as `weights` says. Raises ConfigError if they are damaged.

        Layers are quantised one by one on their way from the file to the device.
        """
        found: dict[str, nn.Module] = {}
        for name in self.facts.encoders:
            encoder = self._load_encoder(name, dtype).requires_grad_(False).eval()
            quantize_encoder_(encoder, weights, device)
            found[name] = move_encoder(encoder, device)
            require_finite(found[name], name, self.folder)
        return found

    def _load_encoder(self, name: str, dtype: torch.dtype) -> Any:
        if file := self.encoder_files.get(name):
            return load_encoder_file(file, self.folder, name, self.classes[name], dtype)
        if layers := quantized_layers(self.folder, name):
            return load_quantized_encoder(self.folder, name, self.classes[name], dtype, layers)
        return load_network(self.folder, name, self.classes[name], dtype)

    def encoders_fingerprint(self) -> str:
        """The first 128 bits of the SHA-256 of the files of text encoders and tokenizers, as hex."""
        hasher = hashlib.sha256()
        for name in (*self.facts.encoders, *self.facts.encoders.values(), *filter(None, [self.facts.processor])):
            own = self.encoder_files.get(name)
            files = [path for path in (self.folder / name).iterdir() if path.is_file()]
            if own is not None:
                files = [own, *(path for path in files if path.suffix != ".safetensors")]
            for file in sorted(files, key=lambda path: path.name):  # wherever they are
                with open_regular(file) as opened:
                    digest = hashlib.file_digest(opened, "sha256").hexdigest()
                hasher.update(f"{name}/{file.name} {digest}\n".encode())
        return hasher.hexdigest()[:32]

    def pipeline(self, **components: Any) -> Any:
        """The diffusers pipeline with these components, the tokenizers and a new scheduler; None for all others."""
        given = dict.fromkeys(self.facts.components)
        scheduler = build_scheduler(self.classes["scheduler"], self.scheduler)
        given |= {**self.tokenizers, "scheduler": scheduler, **components}
        kind = self.pipeline_class
        options = set(kind._get_signature_keys(kind)[1]) - set(kind._optional_components)
        settings = {name: value for name, value in self.index.items() if name in options}  # such as is_distilled
        with quiet_libraries():
            built = kind(**given, **settings)
        built.set_progress_bar_config(disable=True)
        return built

    def save(self, state: Mapping[str, torch.Tensor], folder: Path) -> None:
        """Write a folder for the pipeline's `from_pretrained` with the transformer's weights `state`; all else is
        copied as it is."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.facts.components:
            if name != "transformer" and name not in self.encoder_files:
                shutil.copytree(self.folder / name, folder / name, dirs_exist_ok=True, copy_function=shutil.copyfile)
        shutil.copyfile(self.folder / INDEX, folder / INDEX)
        for name, file in self.encoder_files.items():
            with quiet_libraries():
                encoder: Any = load_encoder_file(file, self.folder, name, self.classes[name], None)
                encoder.save_pretrained(folder / name)
        with quiet_libraries():
            transformer: Any = copy_with_weights(self.transformer, state)
            transformer.save_pretrained(folder / "transformer")


class TransformerModel(nn.Module):
    """The module that is trained: the transformer of a pipeline under its name there."""

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.transformer = transformer

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the transformer returns."""
        return self.transformer(*args, **kwargs)


@dataclass
class TransformerStandIn:
    """What a pipeline calls in place of its transformer: the trained model, which may be wrapped for several ranks.

    Everything but the call is the transformer's own.
    """

    transformer: Any
    call: Any = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.transformer, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The prediction."""
        return self.call(*args, **kwargs)


def load_flow_components(base: FlowBase, facts: FamilyFacts, dtype: torch.dtype) -> FlowComponents:
    """The components of a base model, the autoencoder as `dtype`, the transformer as in its files.

    Raises ConfigError if the base model is missing, damaged, pickled or of another class.
    """
    folder = base.ensure_folder()
    base.check(folder, facts.pipelines, facts.components)
    pipeline_class, classes, index = component_classes(folder, facts.components)
    with quiet_libraries():
        vae = load_network(folder, "vae", classes["vae"], dtype).requires_grad_(False).eval()
        require_finite(vae, "vae", folder)  # training needs its encoder alone, and samples would be black
        return FlowComponents(
            folder=folder,
            facts=facts,
            pipeline_class=pipeline_class,
            classes=classes,
            transformer=_load_transformer(folder, classes["transformer"], base.transformer),
            vae=vae,
            scheduler=_flow_scheduler(folder, base.option),
            tokenizers={name: _load_tokenizer(folder, name, classes[name]) for name in facts.encoders.values()},
            index=index,
            encoder_files=base.encoders,
        )


def check_small_parts(base: FlowBase, facts: FamilyFacts) -> None:
    """Load tokenizers and image processor and build the scheduler if they are on this computer. Raises ConfigError as
    `load_flow_components`."""
    folder = base.folder()
    if folder is None:
        return
    base.check(folder, facts.pipelines, facts.components)
    _, classes, _ = component_classes(folder, facts.components)
    for name in facts.encoders.values():
        _load_tokenizer(folder, name, classes[name])
    if facts.processor:
        load_image_processor(folder, facts.processor)
    for name, file in base.encoders.items():
        label = f"base_model: {name}/config.json of the model in {str(folder)!r} cannot be used"
        with damage_refused(label), torch.device("meta"):
            described = described_network(folder, name, classes[name])
        check_encoder_file(file, name, described, base.label)
    _flow_scheduler(folder, base.option)


def find_flow_model(base_model: str | None, layout: str, facts: FamilyFacts, files: str = "") -> FlowBase:
    """A folder, a model on the hub, or a transformer's file, also an index of shards or the folder that it is in, with
    the other components of `layout` (see `base_of_file`); `files` are those of text encoders (see `encoder_files`).

    Raises ConfigError if it is none of these.
    """
    base = base_model_files.find_base_model(base_model, facts.pipelines, facts.components)
    file = None
    if isinstance(base, Path):
        file = base if base.is_file() else base_model_files.index_in(base)
    found = FlowBase(base) if file is None else base_of_file(file, layout, facts.pipelines, facts.components)
    if not (encoders := encoder_files(files, facts)):
        return found
    model = found.model
    if isinstance(model, HubModel):
        model = replace(model, without_weights=(*model.without_weights, *encoders))
    return replace(found, model=model, encoders=encoders)


def meta_transformer(base: FlowBase, facts: FamilyFacts) -> nn.Module | None:
    """The transformer without weights, on torch's meta device; None if its configuration is not known before it is
    downloaded.

    Raises ConfigError if it cannot be built.
    """
    folder = base.folder()
    if folder is None:
        return _known_transformer(base.label, facts)
    if not (folder / "transformer" / "config.json").is_file():
        return None
    base_model_files.check_pipeline_class(folder, facts.pipelines, str(folder), base.option)
    base_model_files.check_small_files(folder, [folder / "transformer"], base.option)
    _, classes, _ = component_classes(folder, facts.components)
    kind = classes["transformer"]
    label = f"base_model: transformer/config.json of the model in {str(folder)!r} cannot be used"
    with damage_refused(label), torch.device("meta"):
        built: nn.Module = described_network(folder, "transformer", kind)
    if base.transformer is None:
        describe_quantized_(built, folder, "transformer")
    return built


def _known_transformer(name: str, facts: FamilyFacts) -> nn.Module | None:
    known = known_model(name)
    if known is None or "transformer" not in known.networks:
        return None
    with quiet_libraries(), torch.device("meta"):  # the import of the pipeline's file warns of torchvision
        (kind, *_) = getattr(diffusers, facts.pipeline_class)._get_signature_types()["transformer"]
        built: nn.Module = kind(**known.networks["transformer"])
        return built


def find_scheduler(
    base_model: str | None, layout: str, facts: FamilyFacts, files: str = ""
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The scheduler's config and model_index.json; None if there is no such model on this computer."""
    try:
        base = find_flow_model(base_model, layout, facts, files)
        folder = base.folder()
        if folder is None:
            return None
        base_model_files.check_pipeline_class(folder, facts.pipelines, str(folder), base.option)
        index = read_json(folder / INDEX)
        return (_flow_scheduler(folder, base.option), index) if isinstance(index, dict) else None
    except (ConfigError, FileFault, OSError):
        return None


def _flow_scheduler(folder: Path, option: str) -> dict[str, Any]:
    """The config of the scheduler, which may be one that serves other models as well. Raises ConfigError if it is not
    set up for flow matching."""
    config = scheduler_config(folder, option)
    if issubclass(getattr(diffusers, config["_class_name"]), diffusers.UniPCMultistepScheduler) and not (
        config.get("use_flow_sigmas") and config.get("prediction_type") == "flow_prediction"
    ):
        raise ConfigError(
            f"{option}: in the model {str(folder)!r} scheduler/scheduler_config.json has no flow matching: "
            f"use_flow_sigmas is {config.get('use_flow_sigmas')!r}, prediction_type {config.get('prediction_type')!r}.",
            "It needs use_flow_sigmas true and prediction_type flow_prediction, as the published model has them.",
        )
    return config


def _load_transformer(folder: Path, kind: Any, single_file: Path | None) -> Any:
    """With each tensor as it is in its file, also if those of norms are in fp32 and all others in half precision.

    `single_file` has the weights if they are not in the folder.
    """
    if single_file is not None:
        return load_transformer_file(single_file, kind, folder)
    if layers := quantized_layers(folder, "transformer"):
        return load_quantized_transformer(folder, kind, layers)
    files = base_model_files.weight_files(folder, "transformer")
    stored = base_model_files.stored_formats(files)
    halves = [half for name, half in SAFETENSORS_HALF.items() if name in stored.values()]
    if len(halves) == 1 and "F32" in stored.values() and len(set(stored.values())) == 2:
        transformer = load_network(folder, "transformer", kind, halves[0])
        wide = {}
        for file in files:
            with base_model_files.open_safetensors(file) as weights:
                names = weights.keys()
                wide.update({name: weights.get_tensor(name) for name in names if stored.get(name) == "F32"})
        if not transformer.load_state_dict(wide, strict=False, assign=True).unexpected_keys:
            return transformer  # with others the class has renamed weights of older files
    return load_network(folder, "transformer", kind, dtype_of(files))


def _load_tokenizer(folder: Path, name: str, kind: Any) -> Any:
    # without the argument AutoTokenizer would ask on the terminal whether to run code of the model's folder
    arguments = {"trust_remote_code": False} if kind is transformers.AutoTokenizer else {}
    tokenizer = load_part(folder, name, kind, **arguments)
    limit_template_(tokenizer, f"base_model: the chat template of {name} of the model in {str(folder)!r}")
    return tokenizer
