"""SimpleTuner's settings that Tandem does not have. Defaults as in its helpers/configuration/cmd_args.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from modules.facts import all_facts
from modules.importers import common
from modules.importers.flow_families import known_family, reference_facts
from modules.importers.memory import SET_OFFLOAD
from modules.importers.readers import items
from modules.importers.rules import EMPTY_VALUES, Unsupported
from modules.importers.translation import Translation

IMAGES: Final = "Tandem scales all images to the area of the resolution"
_NOT_HERE: Final = "Tandem has no such setting"
_OTHER_MODEL: Final = "for a model family that Tandem does not have"
_WORKINGS: Final = "it changes how SimpleTuner works, not what it trains"
_BIAS: Final = "set family_options.timestep_distribution"
_SAMPLES: Final = "Tandem's samples have no such setting"

UNSUPPORTED: Final = (
    Unsupported("checkpoint_epoch_interval", "set backup_every, such as to 1 epoch"),
    Unsupported("validation_epoch_interval", "set sample_every, such as to 1 epoch"),
    Unsupported("eval_steps_interval eval_epoch_interval", "set validate_every"),
    Unsupported("optimizer_release_gradients", "set fused_backward"),
    Unsupported("fuse_optimizer", "set optimizer.fused"),
    Unsupported("fsdp_enable", "set training_mode to fully_sharded"),
    Unsupported("fsdp_*", "see the Multi-GPU settings"),
    Unsupported("num_processes num_machines", "set world_size", default=1),
    Unsupported("text_encoder_lr", "set parts"),
    Unsupported(
        "pretrained_unet_model_name_or_path pretrained_transformer_model_name_or_path",
        "put these weights into the base model's folder",
    ),
    Unsupported("caption_strategy *instance_prompt", "there is no dataset whose captions it is of"),
    Unsupported("resume_from_checkpoint", "use --resume latest", default="latest"),
    Unsupported("webhook_config", "Tandem has no webhooks", secret=True),
    Unsupported("report_to", common.MONITOR, default="none"),
    Unsupported("tracker_*", common.MONITOR),
    Unsupported("push_* hub_* model_card_*", common.UPLOAD),
    Unsupported("hub_token", common.UPLOAD, secret=True),
    Unsupported("disable_benchmark", common.FIRST_SAMPLES),
    Unsupported("minimum_image_size", IMAGES, default=0),
    Unsupported("maximum_image_size target_downsample_size", IMAGES),
    Unsupported("aspect_bucket_rounding", common.BUCKETS, default=2),
    Unsupported("aspect_bucket_alignment", common.BUCKETS, default=64),
    Unsupported("base_model_default_dtype", common.NO_QUANTISATION, default="bf16"),
    Unsupported("conditioning_multidataset_sampling", "an image has all of its references", default="combined"),
    Unsupported("quantize_via", _WORKINGS, default="accelerator"),
    Unsupported("gradient_precision", "gradients are kept in fp32"),
    Unsupported("*_precision", "text encoders stay in the run's precision", default="no_change"),
    Unsupported("flow_beta_schedule_*", common.FLOW, default=2.0),
    Unsupported("flow_*", common.FLOW),
    Unsupported("flux_guidance_mode", _OTHER_MODEL, default="constant"),
    Unsupported("flux_*", _OTHER_MODEL),
    Unsupported("timestep_bias_strategy", _BIAS, default="none"),
    Unsupported("timestep_bias_multiplier", _BIAS, default=1.0),
    Unsupported("timestep_bias_end", _BIAS, default=1000),
    Unsupported("timestep_bias_portion", _BIAS, default=0.25),
    Unsupported("training_scheduler_timestep_spacing", _NOT_HERE, default="trailing"),
    Unsupported("inference_scheduler_timestep_spacing", _SAMPLES, default="trailing"),
    Unsupported("musubi_blocks_to_swap ramtorch enable_group_offload", SET_OFFLOAD),
    Unsupported("ramtorch_transformer_percent", SET_OFFLOAD, default=100),
    Unsupported("dynamo_backend", "set compile", default="no"),
    Unsupported("layer_freeze_strategy", "set parts", default="none"),
    Unsupported("lora_init_type", "adapters start as peft's do", default="default"),
    Unsupported("init_lora", "set lora_from"),
    Unsupported("ema_device", "the average stays on the model's device", default="cpu"),
    Unsupported("ema_validation", "samples use the average", default="comparison"),
    Unsupported("ema_foreach_disable", _WORKINGS),
    Unsupported(
        "pretrained_vae_model_name_or_path", "put the autoencoder into a diffusers folder",
        default="madebyollin/sdxl-vae-fp16-fix",
    ),
    Unsupported("train_text_encoder", "set parts; SimpleTuner does so for SD 2 only"),
    Unsupported("vae_dtype", _WORKINGS, default="bf16"),
    Unsupported("vae_cache_scan_behaviour", _WORKINGS, default="recreate"),
    Unsupported("write_batch_size aws_max_pool_connections", _WORKINGS, default=128),
    Unsupported("read_batch_size", _WORKINGS, default=25),
    Unsupported("image_processing_batch_size max_workers", _WORKINGS, default=32),
    Unsupported("torch_num_threads", _WORKINGS, default=8),
    Unsupported("aspect_bucket_worker_count", _WORKINGS, default=12),
    Unsupported("dataloader_prefetch_qlen", _WORKINGS, default=10),
    Unsupported("metadata_update_interval", _WORKINGS, default=3600),
    Unsupported("attention_mechanism", "PyTorch's attention chooses the fastest implementation", default="diffusers"),
    Unsupported("logging_dir", "the run's folder contains the log", default="logs"),
    Unsupported("cache_dir_text", "Tandem has its own cache", default="cache"),
    Unsupported("data_backend_sampling", "repeats sets how often each image appears", default="auto-weighting"),
    Unsupported("num_validation_images", "each prompt gives one image", default=1),
    Unsupported("validation_guidance_rescale", _SAMPLES, default=0.0),
    Unsupported("validation_lycoris_strength", _SAMPLES, default=1.0),
    Unsupported("validation_*", _SAMPLES),
    Unsupported("*", _NOT_HERE),
)  # fmt: skip

# What else than a LoRA or fine-tune of the model it trains with the same settings.
_OTHER_TRAINING: Final[Mapping[str, str]] = {
    "controlnet": "a ControlNet", "control": "a model with control images", "slider_lora_target": "a slider",
    "distillation_method": "a distillation", "diffusion_blocks_config": "a model whose blocks are trained one by one",
}  # fmt: skip
_EDITS: Final = ("kontext", "edit")  # beginnings of flavours that take images as a condition
REFERENCES: Final = ("reference_strict", "reference_loose")  # conditioning_type of what models that edit images take
_PAIRS: Final = "SimpleTuner trains on pairs of images, which Tandem does not have for it"
MASKS: Final = ("mask", "segmentation")  # conditioning_type of what is no condition


def family_of(given: Mapping[str, object]) -> str | None:
    """Tandem's family of model_family, which model_flavour may tell; None if it has none."""
    family, flavour = known_family(given.get("model_family")), str(given.get("model_flavour") or "").lower()
    siblings = (name for name, facts in all_facts().items() if flavour in facts.simple_tuner)
    known = all_facts()
    return next((name for name in siblings if family and known[name].transformer == known[family].transformer), family)


def hold_other_training(given: Mapping[str, object], translation: Translation) -> None:
    """Take the base model away where the file trains something else than the config would."""
    flavour, family = str(given.get("model_flavour") or "").lower(), family_of(given)
    for name, what in _OTHER_TRAINING.items():
        if given.get(name) not in EMPTY_VALUES and str(given[name]).lower() not in ("none", "false"):
            translation.hold(f"{name}: SimpleTuner trains {what}, which Tandem does not")
    if flavour.startswith(_EDITS) and not reference_facts(family):
        translation.hold(f"model_flavour {flavour}: {_PAIRS}")
    facts = all_facts()[family] if family else None
    is_assisted = facts and (flavour or next(iter(facts.simple_tuner), "")) in facts.simple_tuner_assisted
    if given.get("disable_assistant_lora"):
        translation.withdraw("training_adapter", "disable_assistant_lora is true")
    elif is_assisted and "training_adapter" not in translation.data:
        translation.hold(
            "SimpleTuner trains the distilled model with an adapter of its own; set training_adapter to it"
        )


def hold_pairs(datasets: object, imported: Collection[str], translation: Translation) -> None:
    """The same for datasets of images that belong to others, unless they are masks or among the `imported` ids."""
    for dataset in (each for each in items(datasets) if isinstance(each, Mapping)):
        made = [each for each in items(dataset.get("conditioning")) if isinstance(each, Mapping)]
        given = [dataset] if is_condition(dataset) and str(dataset.get("id")) not in imported else []
        if any(str(each.get("conditioning_type")) not in MASKS for each in (*made, *given)):
            translation.hold(f"the dataset {dataset.get('id')} has images as a condition: {_PAIRS}")
            return


def is_condition(dataset: Mapping[str, object]) -> bool:
    """Whether the images of a dataset belong to those of others."""
    return dataset.get("dataset_type") == "conditioning" or dataset.get("conditioning_type") not in EMPTY_VALUES
