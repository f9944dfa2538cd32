"""The files that other tools read and write: adapters, embeddings and whole models in one file, with their headers."""

from modules.checkpoint.formats.embeddings import read_embedding, write_embedding
from modules.checkpoint.formats.folders import convert_weights, describe_folder
from modules.checkpoint.formats.lora import read_lora, write_lora
from modules.checkpoint.formats.lora_kohya import kohya_stems
from modules.checkpoint.formats.lora_weights import Layout, LoraWeights
from modules.checkpoint.formats.metadata import PictureFolder, TrainingFacts, file_metadata
from modules.checkpoint.formats.single_file import architecture_of, diffusers_folder, single_file
from modules.checkpoint.formats.tensor_files import DTYPES, TensorFile, planned, write_tensor_file

__all__ = [
    "DTYPES",
    "Layout",
    "LoraWeights",
    "PictureFolder",
    "TensorFile",
    "TrainingFacts",
    "architecture_of",
    "convert_weights",
    "describe_folder",
    "diffusers_folder",
    "file_metadata",
    "kohya_stems",
    "planned",
    "read_embedding",
    "read_lora",
    "single_file",
    "write_embedding",
    "write_lora",
    "write_tensor_file",
]
