"""Qwen-Image-Edit: the layers and files of Qwen-Image; its pipeline, its name on the hub or a header tell it apart."""

from dataclasses import replace

from modules.facts import ReferenceFacts, Shapes, has, hub_model_by_name
from modules.facts.qwen_image import FACTS as QWEN_IMAGE

_KNOWN = QWEN_IMAGE.models["Qwen/Qwen-Image"]
_NEWER = replace(_KNOWN, networks={"transformer": {"zero_cond_t": True}})
_2509, _2511 = "Qwen/Qwen-Image-Edit-2509", "Qwen/Qwen-Image-Edit-2511"
_MARK_OF_2511 = "__index_timestep_zero__"  # an empty tensor, by which ComfyUI knows a model with zero_cond_t


def _hub_model_of(shapes: Shapes, file_name: str) -> str:
    by_name = hub_model_by_name({"2509": _2509, "2511": _2511}, "Qwen/Qwen-Image-Edit")
    return _2511 if has(shapes, _MARK_OF_2511) else by_name(shapes, file_name)


FACTS = replace(
    QWEN_IMAGE,
    about="Qwen-Image-Edit by Alibaba: 20 B parameters (41 GB in bf16), Apache 2.0. Edits images.",
    popularity=6,
    pipelines=("QwenImageEditPlusPipeline", "QwenImageEditPipeline"),
    processor="processor",
    # of the pipeline of later models: the square root of CONDITION_IMAGE_SIZE
    references=ReferenceFacts(most=3, side=1024, multiple=32, seen_by_text=True, seen_side=384),
    models={"Qwen/Qwen-Image-Edit": _KNOWN, _2509: _KNOWN, _2511: _NEWER},
    layers=(_MARK_OF_2511,),
    hub_model_of=_hub_model_of,
    file=QWEN_IMAGE.file and replace(QWEN_IMAGE.file, is_rarer=True),
    architecture="qwen-image-edit",
    architectures=("qwen-image-edit",),
    musubi_versions={"edit": "Qwen/Qwen-Image-Edit", "edit-2509": _2509, "edit-2511": _2511},
    diffusion_pipe=("qwen_image", r"(qwen|image)[\s._-]?edit"),
    aliases=("qwen_image_edit", "qwen_image_edit_plus", "qwen_image_edit_2509", "qwen_image_edit_2511", "qwen_edit"),
    simple_tuner={"edit-v1": "Qwen/Qwen-Image-Edit", "edit-v2": _2509, "edit-v3": _2511},
)
