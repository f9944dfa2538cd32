"""Image classifier: says which of the given classes an image shows; classes are the captions of the training images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import torch
from PIL import Image
from pydantic import JsonValue
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from modules.classification import confusion
from modules.classification.augment import Augmentation, Labels, keep_pixels
from modules.classification.mixing import Mixing
from modules.classification.networks import build_network, check_network, head_name, normalization
from modules.classification.options import ARCHITECTURE_OPTIONS, ClassifierOptions
from modules.classification.resnet import ResidualBlock
from modules.config import ConfigError, TrainConfig
from modules.data.batch import Batch, Example
from modules.diffusion.base_model_files import read_shapes
from modules.facts.classifier import FACTS
from modules.families._family import Evaluation, Family, Metrics, SampleRequest, read_options
from modules.families._saved_model import require_described, saved_options
from modules.torch_compat import AnyBatchNorm

MODEL_NAME = "TandemClassifier"
WEIGHTS = "model.safetensors"
_MATRIX_IN_EVENT = 100  # classes: 20 KB for each validation


class Classifier(Family):
    """Cross-entropy on class labels."""

    facts = FACTS
    Options: ClassVar[type[ClassifierOptions]] = ClassifierOptions
    image_cache = "none"
    draws_samples = FACTS.draws_samples
    learns_classes = FACTS.learns_classes

    def __init__(self, options: ClassifierOptions, model: nn.Module) -> None:
        self.options, self.model, self.classes = options, model, options.class_names
        self.encoders: dict[str, nn.Module] = {}
        self.normalization = normalization(model)
        self._normalizations: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
        self.example_transform = keep_pixels
        labels = Labels({name: number for number, name in enumerate(self.classes)})
        self.validation_transform = labels
        self.sample_transform = Augmentation(
            labels,
            options.rand_augment,
            options.rand_augment_magnitude,
            options.crop_padding,
            options.random_erasing,
        )
        if options.mixup or options.cutmix:
            self.sample_mixing = Mixing(options.mixup, options.cutmix)

    @classmethod
    def base_model_notes(cls, config: TrainConfig) -> Sequence[str]:
        """Nothing; see Family for the errors."""
        _check_settings(config)
        check_network(_resolve_options(config, cls.Options).network)
        if config.base_model is not None:
            _check_weights(Path(config.base_model))
        return []

    @classmethod
    def load(cls, config: TrainConfig) -> Self:
        """From `base_model`, a folder written by `export`, or new; if its classes are others, with a new last layer."""
        _check_settings(config)
        options = _resolve_options(config, cls.Options)
        if not options.class_names:
            raise ConfigError("family_options.classes is empty, and there are no images to take them from.")
        if config.base_model is not None:
            _check_weights(Path(config.base_model))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            model = build_network(
                options.network, len(options.class_names), options.norm, options.width, pretrained=options.pretrained
            )
        if config.base_model is not None:
            _load_weights(model, options, Path(config.base_model))
        return cls(options, model)

    def fingerprint(self) -> str:
        """Nothing is cached."""
        return "classifier"

    def encode(self, example: Example) -> dict[str, Tensor]:
        """Pixels as they are."""
        return keep_pixels(example)

    def loss(self, batch: Batch) -> Tensor:
        """Cross-entropy [B]; of mixed samples, that of both labels by their shares."""
        logits, tensors = self._logits(batch.tensors["pixels"]), batch.tensors
        losses = self._cross_entropy(logits, tensors["label"])
        if "share" not in tensors:
            return losses
        share = tensors["share"].to(losses.dtype)
        return share * losses + (1 - share) * self._cross_entropy(logits, tensors["other_label"])

    def evaluate(self, batch: Batch) -> Evaluation:
        """Cross-entropy without label smoothing, and confusion counts."""
        logits, labels = self._logits(batch.tensors["pixels"]), batch.tensors["label"]
        losses = functional.cross_entropy(logits, labels, reduction="none")
        return Evaluation(losses, confusion.count(logits, labels, batch.weights > 0))

    def summarize(self, counts: Mapping[str, Tensor]) -> Metrics:
        """Accuracies, those of the classes, and the confusion matrix."""
        values, by_class = confusion.accuracies(counts)
        named = {name: value for name, value in zip(self.classes, by_class, strict=True) if value == value}
        if "matrix" not in counts:
            return Metrics(values, named)
        matrix = counts["matrix"].numpy()
        images = {"confusion matrix": partial(confusion.draw_matrix, matrix, self.classes)}
        numbers = matrix.tolist() if len(self.classes) <= _MATRIX_IN_EVENT else ()
        return Metrics(values, named, images, numbers)

    @torch.no_grad()
    def probabilities(self, pixels: Tensor) -> Tensor:
        """fp32 [B, classes], on the CPU, of images uint8 [B, 3, H, W]."""
        device = next(self.model.parameters()).device
        return self._logits(pixels.to(device)).softmax(dim=1).float().cpu()

    def sample(self, request: SampleRequest) -> Image.Image:
        """A classifier has no images to show; `load` refuses samples."""
        raise ConfigError("samples: an image classifier generates no images; leave samples empty.")

    def export(self, state: Mapping[str, Tensor], folder: Path) -> None:
        """model.safetensors, and the options in config.json."""
        tensors = {name: value.detach().to("cpu").contiguous() for name, value in state.items()}
        save_file(tensors, folder / WEIGHTS)
        config = {"_class_name": MODEL_NAME, "classes": self.classes, "options": self.options.model_dump()}
        (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")

    def blocks(self) -> Sequence[nn.Module]:
        """The residual blocks of a cifar_resnet; another network as a whole."""
        return [module for module in self.model.modules() if isinstance(module, ResidualBlock)] or [self.model]

    def _logits(self, pixels: Tensor) -> Tensor:
        """[B, classes], at least fp32."""
        if self.options.freeze_batch_norm:  # in every forward: whoever trains or validates switches the mode
            for module in self.model.modules():
                if isinstance(module, AnyBatchNorm):
                    module.eval()
        weights = next(self.model.parameters())
        kind = (weights.device, weights.dtype)
        if kind not in self._normalizations:  # kept: a GPU would wait for their copies in each step
            self._normalizations[kind] = [torch.tensor(value).to(weights).view(3, 1, 1) for value in self.normalization]
        mean, std = self._normalizations[kind]
        logits: Tensor = self.model((pixels.to(weights.dtype) - mean) / std)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _cross_entropy(self, logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, reduction="none", label_smoothing=self.options.label_smoothing)


def _check_settings(config: TrainConfig) -> None:
    """Captions are class names, so nothing may change them; and there are no prompts."""
    for name, value in (("caption_dropout", config.caption_dropout), ("masked_training", config.masked_training)):
        if value:
            raise ConfigError(
                f"{name} is {json.dumps(value)}, which an image classifier has no use for; switch it off."
            )
    for number, concept in enumerate(config.concepts):
        for name in ("prompt_prefix", "wildcards", "tag_shuffle", "tag_dropout", "caption_dropout"):
            if concept.enabled and (value := getattr(concept, name)):
                raise ConfigError(
                    f"concepts.{number}.{name} is {json.dumps(value)}, but a classifier's captions are the names of "
                    "its classes; leave it at its default."
                )
    if any(sample.enabled for sample in config.samples):
        raise ConfigError("samples: an image classifier generates no images; leave samples empty.")


def _resolve_options(config: TrainConfig, kind: type[ClassifierOptions]) -> ClassifierOptions:
    """The options of the config; those of the architecture come from the base model."""
    given: Mapping[str, JsonValue] = config.family_options
    if config.base_model is None:
        options = read_options(kind, given)
        if options.freeze_batch_norm and not options.pretrained:
            raise ConfigError(
                "family_options.freeze_batch_norm is true, but this network starts from scratch and has no statistics "
                "yet.",
                "Set it to false, or start from base_model or pretrained weights.",
            )
        return options
    trained = _options_of(Path(config.base_model))
    for name in ARCHITECTURE_OPTIONS & given.keys() & trained.keys():
        if given[name] != trained[name]:
            raise ConfigError(
                f"family_options.{name} is {given[name]!r}, but the model in base_model has {trained[name]!r}.",
                f"Omit family_options.{name} to continue with that model.",
            )
    kept = {name: trained[name] for name in ARCHITECTURE_OPTIONS & trained.keys()}
    if not given.get("classes"):
        kept["classes"] = trained.get("classes", "")
    return read_options(kind, {**given, **kept, "pretrained": False})


def _options_of(folder: Path) -> Mapping[str, JsonValue]:
    return saved_options(folder, MODEL_NAME, "classifier", "Give the model folder of an earlier run of this family.")


def _check_weights(folder: Path) -> None:
    """Raises ConfigError unless the weights are those that the config.json describes. Networks of timm, which have
    few sizes, are not compared before they are built."""
    trained = read_options(ClassifierOptions, _options_of(folder))
    stored = read_shapes([folder / WEIGHTS])
    if trained.network.startswith("cifar_resnet"):
        with torch.device("meta"):
            described = build_network(
                trained.network, len(trained.class_names), trained.norm, trained.width, pretrained=False
            )
        require_described(folder, stored, described, "config.json")


def _load_weights(model: nn.Module, options: ClassifierOptions, folder: Path) -> None:
    head = head_name(options.network, model)
    keeps_head = read_options(ClassifierOptions, _options_of(folder)).class_names == options.class_names
    try:
        state = load_file(folder / WEIGHTS)
        if not keeps_head:
            fresh = {name: value for name, value in model.state_dict().items() if name.startswith(f"{head}.")}
            state = {**state, **fresh}
        model.load_state_dict(state)
    except (OSError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"base_model: the model in {str(folder)!r} is damaged ({reason}).") from error
