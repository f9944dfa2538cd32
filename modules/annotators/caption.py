"""Captions by any image-to-text model that transformers loads: BLIP, BLIP-2, Florence-2, Qwen-VL, LLaVA and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast

import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from modules.annotators.annotator import MOST_PIXELS_A_SIDE
from modules.annotators.model_folder import (
    MODEL_FILES,
    PROCESSOR_FILES,
    loading,
    moved,
    require_finite,
    require_stored_model,
)
from modules.annotators.processor import load_processor
from modules.config import ConfigError
from modules.diffusion.chat_template import limited_template
from modules.diffusion.image_processors import check_image_sizes
from modules.diffusion.quiet_libraries import quiet_libraries

MODEL_TYPES: Final = frozenset(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES)
_CHAT_PROMPT: Final = "Describe this image in one paragraph."
_PROMPTS: Final = {"florence2": "<MORE_DETAILED_CAPTION>", "paligemma": "caption en"}
_LONGEST_TOKEN: Final = 10_000  # characters; those of published models have some dozen
_CONTINUED: Final = frozenset({"blip", "git"})  # their captions begin with the prompt


class Captioner:
    """An image-to-text model. Without a prompt, the one that its kind is usually given."""

    longest: int | None = MOST_PIXELS_A_SIDE

    def __init__(
        self, folder: Path, device: torch.device, dtype: torch.dtype, *, prompt: str, max_tokens: int, name: str
    ) -> None:
        """Raises ConfigError if the model cannot be loaded."""
        self._device, self._dtype, self._max_tokens = device, dtype, max_tokens
        with loading(name, folder, *PROCESSOR_FILES):
            self._processor = load_processor(folder)
        with loading(name, folder, *MODEL_FILES):
            config: Any = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
            require_stored_model(name, folder, lambda: cast(Any, AutoModelForImageTextToText).from_config(config))
            self._model: Any = cast(Any, AutoModelForImageTextToText).from_pretrained(
                folder, dtype=dtype, use_safetensors=True, local_files_only=True
            )
            self._model.eval().to(device)
        require_finite(name, self._model)
        if not hasattr(self._processor, "image_processor") or not hasattr(self._processor, "tokenizer"):
            raise ConfigError(f"--model: {name!r} has no processor of images and text.", "Choose another model.")
        check_image_sizes(self._processor.image_processor, name)
        self._kind = str(self._model.config.model_type)
        self._is_chat = bool(getattr(self._processor, "chat_template", None))
        self._processor.tokenizer.padding_side = "left"  # what is generated follows the prompt
        if len(self._processor.tokenizer) <= len(self._processor.tokenizer.all_special_tokens):
            raise ConfigError(
                f"--model: {name!r} has no vocabulary: files of its tokenizer, such as tokenizer.json, are missing.",
                "Copy or download it again, or use another.",
            )
        if (longest := max(map(len, self._processor.tokenizer.get_vocab()))) > _LONGEST_TOKEN:
            raise ConfigError(
                f"--model: {name!r} has a token of {longest:,} characters; the most is {_LONGEST_TOKEN:,}.",
                "Copy or download it again, or use another.",
            )
        self.prompt = prompt or (_CHAT_PROMPT if self._is_chat else _PROMPTS.get(self._kind, ""))
        if self._kind == "florence2":
            _check_task(self.prompt, self._processor)
        with loading(name, folder, *PROCESSOR_FILES), limited_template(f"--model: the chat template of {name!r}"):
            self._text = self._chat_text() if self._is_chat else self.prompt

    @torch.inference_mode()
    def __call__(self, images: Sequence[Image.Image]) -> list[str]:
        """A caption for each image."""
        with quiet_libraries():
            inputs = self._processor(**self._arguments(images), return_tensors="pt")
            inputs = moved(inputs, self._device, self._dtype)
            if self._kind == "git" and self.prompt:
                inputs = _open_ended(inputs)
            made = self._model.generate(
                **inputs,
                max_new_tokens=self._max_tokens,
                do_sample=False,
                num_return_sequences=1,
                return_dict_in_generate=False,
            )
            texts: list[str] = self._processor.batch_decode(self._new(made, inputs), skip_special_tokens=True)
        return [text.strip() for text in texts]

    def _arguments(self, images: Sequence[Image.Image]) -> dict[str, object]:
        if self._is_chat:
            # one list for each image: models that take several images of a conversation need to know whose they are
            return {"images": [[image] for image in images], "text": [self._text] * len(images), "padding": True}
        if not self.prompt:
            return {"images": list(images)}
        return {"images": list(images), "text": [self._text] * len(images), "padding": True}

    def _chat_text(self) -> str:
        content = [{"type": "image"}, {"type": "text", "text": self.prompt}]
        chat = [{"role": "user", "content": content}]
        text: str = self._processor.apply_chat_template(chat, add_generation_prompt=True)
        return text

    def _new(self, made: torch.Tensor, inputs: Mapping[str, Any]) -> torch.Tensor:
        """The tokens that do not repeat the prompt, [images, tokens]."""
        given = inputs.get("input_ids")
        if given is None or self._kind in _CONTINUED or self._model.config.is_encoder_decoder:
            return made
        length = given.shape[1]
        repeats = made.shape[1] >= length and bool((made[:, :length] == given).all())
        return made[:, length:] if repeats else made


def _check_task(prompt: str, processor: Any) -> None:
    """Raise ConfigError for a task of Florence-2 that answers with places in the image, or that has a text beside it,
    which its processor does not take."""
    answers = processor.tasks_answer_post_processing_type
    tasks = [task for task in processor.task_prompts_without_inputs if answers[task] == "pure_text"]
    if prompt not in tasks and any(task in prompt for task in answers):
        raise ConfigError(
            f"--prompt is {prompt!r}; of Florence-2's tasks {', '.join(tasks)} describe an image.",
            "Give one of them and nothing beside it, or a question in plain words.",
        )


def _open_ended(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Without the end token of the prompt, after which GIT says nothing, and without what it does not take."""
    shortened = {name: inputs[name][:, :-1] for name in ("input_ids", "attention_mask")}
    return {name: value for name, value in inputs.items() if name != "token_type_ids"} | shortened
