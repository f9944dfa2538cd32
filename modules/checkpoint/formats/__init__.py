"""The file formats of other tools: adapters, embeddings and single-file models, with their metadata."""

from modules.checkpoint.formats.diffusers_folder import convert_folder_dtype, read_diffusers_folder
from modules.checkpoint.formats.embeddings import read_embedding, write_embedding
from modules.checkpoint.formats.lora import (
    adapter_algorithm,
    adapter_file,
    assumed_alpha,
    check_is_lora,
    check_kohya_names,
    left_out_sentence,
    read_adapter,
    read_lora,
    write_lora,
)
from modules.checkpoint.formats.lora_kohya import kohya_key_prefixes
from modules.checkpoint.formats.lora_limits import alpha_limits, dora_limits, magnitude_limits, name_limits, oft_limits
from modules.checkpoint.formats.lora_origin import of_family as lora_of_family
from modules.checkpoint.formats.lora_own_names import has_own_names
from modules.checkpoint.formats.lora_weights import AdapterWeights, Layout, LoraWeights
from modules.checkpoint.formats.lycoris import Factor, LohaWeights, LokrWeights, PartWeights, adapter_tensors
from modules.checkpoint.formats.merging import Merge, fits, merge_into_file, merge_into_folder, merged_weight
from modules.checkpoint.formats.metadata import BucketCount, ImageFolder, LoraSize, RunMetadata, file_metadata
from modules.checkpoint.formats.oft import OftWeights, OutputOftWeights
from modules.checkpoint.formats.safetensors_file import SafetensorsFile, lazy_tensor, write_safetensors
from modules.checkpoint.formats.single_file import architecture_of, write_diffusers_folder, write_single_file

__all__ = [
    "AdapterWeights",
    "BucketCount",
    "Factor",
    "ImageFolder",
    "Layout",
    "LohaWeights",
    "LokrWeights",
    "LoraSize",
    "LoraWeights",
    "Merge",
    "OftWeights",
    "OutputOftWeights",
    "PartWeights",
    "RunMetadata",
    "SafetensorsFile",
    "adapter_algorithm",
    "adapter_file",
    "adapter_tensors",
    "alpha_limits",
    "architecture_of",
    "assumed_alpha",
    "check_is_lora",
    "check_kohya_names",
    "convert_folder_dtype",
    "dora_limits",
    "file_metadata",
    "fits",
    "has_own_names",
    "kohya_key_prefixes",
    "lazy_tensor",
    "left_out_sentence",
    "lora_of_family",
    "magnitude_limits",
    "merge_into_file",
    "merge_into_folder",
    "merged_weight",
    "name_limits",
    "oft_limits",
    "read_adapter",
    "read_diffusers_folder",
    "read_embedding",
    "read_lora",
    "write_diffusers_folder",
    "write_embedding",
    "write_lora",
    "write_safetensors",
    "write_single_file",
]
