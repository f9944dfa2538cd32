"""Files and texts that may come from somebody else: read with limits, shown without being obeyed."""

from modules.files.changeable import check_changeable
from modules.files.display import (
    MASK,
    control_character,
    encodable,
    is_secret_name,
    mask_secrets,
    printable,
    spreadsheet_cell,
    visible,
)
from modules.files.gguf_header import read_gguf_header
from modules.files.links import expand_home, find_link, is_link, whole_path
from modules.files.opening import FileFault
from modules.files.partial import (
    PARTIAL,
    REPLACED,
    REPLACED_MODEL,
    check_replaceable,
    put_back_replaced,
    remove_partial,
    replacing,
)
from modules.files.reading import (
    MAX_DEPTH,
    decode_json,
    file_size,
    file_stamp,
    is_deeper_than,
    is_plain_name,
    open_regular,
    read_bytes,
    read_json,
    read_lines,
    read_tail,
    read_text,
)
from modules.files.records import Record, validate_record
from modules.files.safetensors_header import read_header
from modules.files.shard_paths import is_shard, lies_there
from modules.files.weight_map import weight_map
from modules.files.writing import open_for_writing, remove_tree, write_fault

__all__ = [
    "MASK",
    "MAX_DEPTH",
    "PARTIAL",
    "REPLACED",
    "REPLACED_MODEL",
    "FileFault",
    "Record",
    "check_changeable",
    "check_replaceable",
    "control_character",
    "decode_json",
    "encodable",
    "expand_home",
    "file_size",
    "file_stamp",
    "find_link",
    "is_deeper_than",
    "is_link",
    "is_plain_name",
    "is_secret_name",
    "is_shard",
    "lies_there",
    "mask_secrets",
    "open_for_writing",
    "open_regular",
    "printable",
    "put_back_replaced",
    "read_bytes",
    "read_gguf_header",
    "read_header",
    "read_json",
    "read_lines",
    "read_tail",
    "read_text",
    "remove_partial",
    "remove_tree",
    "replacing",
    "spreadsheet_cell",
    "validate_record",
    "visible",
    "weight_map",
    "whole_path",
    "write_fault",
]
