"""Saving from one rank, so that a file is always whole: the former one or the new one."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from torch import Tensor, nn

from modules.checkpoint.backups import sync_all_to_disk, sync_to_disk
from modules.checkpoint.formats.safetensors_file import lazy_tensor, write_safetensors
from modules.distributed import main_process_first
from modules.files import PARTIAL, REPLACED_MODEL, check_replaceable, remove_partial, remove_tree
from modules.library.unwrap import unwrapped

State = Mapping[str, Tensor] | nn.Module | Callable[[Path], object]


def save_on_rank0(state: State, path: str | Path) -> Path:
    """Rank 0 saves `state` to `path` while the others wait, however long it takes; returns `path`.

    `state` is a mapping of tensors (a state_dict) or a module, which is unwrapped from DistributedDataParallel: both
    are written as safetensors, which nobody's code hides in. Or it is a function that gets a temporary path and writes
    a file or a folder there. What it wrote is flushed to the disk, then renamed to `path`, whose former content stays
    until then.

    All ranks must call it. Raises OSError on rank 0 if the disk is full or not writable; the launcher then ends the
    others.
    """
    if not isinstance(state, nn.Module | Mapping) and not callable(state):
        raise TypeError(
            f"save_on_rank0: state is {type(state).__name__}; give a module, a mapping of tensors or a function"
        )
    path = Path(path)
    main_process_first(lambda: _save(state, path))
    return path


def _save(state: State, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(
            f"save_on_rank0: {str(path.parent)!r} is a file; give a path within a folder"
        ) from None
    if not isinstance(state, nn.Module | Mapping):
        _write_with(state, path)
        return
    tensors = unwrapped(state).state_dict() if isinstance(state, nn.Module) else state
    wrong = [name for name, tensor in tensors.items() if not isinstance(tensor, Tensor)]
    if wrong:
        raise TypeError(
            f"save_on_rank0: {wrong[0]!r} is {type(tensors[wrong[0]]).__name__}, and safetensors holds tensors; give a "
            "mapping of names to tensors, or a function that writes the file"
        )
    if path.is_dir():
        raise IsADirectoryError(f"save_on_rank0: {str(path)!r} is a folder; give the path of a file within it")
    write_safetensors(path, {name: lazy_tensor(tensor) for name, tensor in tensors.items()}, {})
    sync_to_disk(path.parent)


def _write_with(write: Callable[[Path], object], path: Path) -> None:
    partial = path.with_name(f"{PARTIAL}{os.getpid()}-{path.name}")
    former = path.with_name(f"{REPLACED_MODEL}{path.name}")
    check_replaceable(path)
    remove_partial(path.parent, only="")  # of programs that were killed here
    remove_tree(partial)
    try:
        write(partial)
        if not partial.exists():
            raise FileNotFoundError(
                f"save_on_rank0: the function wrote nothing to the path that it was given, {partial}"
            )
        sync_all_to_disk(partial)
        if path.exists() and (path.is_dir() or partial.is_dir()):  # a folder can neither replace nor be replaced
            remove_tree(former)
            path.rename(former)
        partial.replace(path)
    except BaseException:
        remove_tree(partial)
        if not os.path.lexists(path):
            with suppress(OSError):
                former.rename(path)
        raise
    remove_tree(former)
    sync_to_disk(path.parent)
