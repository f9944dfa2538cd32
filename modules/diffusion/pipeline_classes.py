"""Which classes of diffusers and transformers a model folder's model_index.json names, and whether they may be used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import diffusers
import transformers
from diffusers.models.modeling_utils import ModelMixin

from modules.config import ConfigError
from modules.diffusion.base_model_files import DAMAGED
from modules.diffusion.hub.files import INDEX
from modules.diffusion.quiet_libraries import quiet_libraries
from modules.files import FileFault, printable, read_json

_LIBRARIES = {"diffusers": diffusers, "transformers": transformers}
# Processors of text and images, of which only the tokenizer is needed here: those of images need torchvision.
_TOKENIZER_OF_PROCESSOR = {"PixtralProcessor": transformers.AutoTokenizer}
_SCHEDULERS = (diffusers.FlowMatchEulerDiscreteScheduler, diffusers.UniPCMultistepScheduler)


def component_classes(folder: Path, components: Iterable[str]) -> tuple[Any, dict[str, Any], Mapping[str, Any]]:
    """The pipeline class, the class of each component, and model_index.json.

    A component's class is that of the index, which must be one of diffusers or transformers that the pipeline's
    constructor takes. Raises ConfigError for any other.
    """
    index = read_json(folder / INDEX)
    assert isinstance(index, dict), "check_pipeline_class has read it"
    with quiet_libraries():  # the import of its file warns of torchvision
        pipeline_class = getattr(diffusers, index["_class_name"])
    expected = pipeline_class._get_signature_types()
    classes = {}
    for name in components:
        entry: Any = index.get(name)
        try:
            if not _is_component(entry) or entry[0] not in _LIBRARIES:
                raise FileFault(f"names {printable(entry, 80)} as its {name}, not a class of diffusers or transformers")
            kind = _TOKENIZER_OF_PROCESSOR.get(entry[1]) or getattr(_LIBRARIES[entry[0]], entry[1], None)
            if not _is_acceptable(kind, name, expected.get(name, ())):
                raise FileFault(
                    f"names {printable(entry[1], 80)} as its {name}, which {index['_class_name']} cannot use"
                )
        except FileFault as error:
            raise ConfigError(f"base_model: in the model {str(folder)!r} {INDEX} {error}.", DAMAGED) from error
        classes[name] = kind
    return pipeline_class, classes, index


def _is_acceptable(kind: object, name: str, expected: tuple[Any, ...]) -> bool:
    if not isinstance(kind, type):
        return False
    if name.startswith("tokenizer"):  # transformers has several classes for one tokenizer
        tokenizers = transformers.PreTrainedTokenizerBase | transformers.ProcessorMixin | transformers.AutoTokenizer
        return issubclass(kind, tokenizers)
    if name == "processor":
        return issubclass(kind, transformers.ProcessorMixin)
    if name == "scheduler":
        return issubclass(kind, _SCHEDULERS)
    base = ModelMixin if name in ("transformer", "vae") else transformers.PreTrainedModel
    wanted = tuple(each for each in expected if isinstance(each, type))
    return issubclass(kind, base) and issubclass(kind, wanted or base)


def _is_component(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(each, str) for each in entry)
