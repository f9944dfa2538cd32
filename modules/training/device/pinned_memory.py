"""Host memory for what is copied from and to a GPU: pinned, so that neither waits for the other."""

from __future__ import annotations

import mmap
import weakref
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor

_PORTABLE: Final = 1  # cudaHostRegisterPortable: pinned for all GPUs
_ALIGNMENT: Final = 64  # bytes, of each place in a piece of memory


def pinned_memory(size: int, device: torch.device) -> Tensor:
    """Zeros in pinned memory for copies from and to the GPU `device`; uint8 [size], with `size` above 0 in bytes.

    torch's allocator rounds each block up to a power of two and never gives it back (ATen/core/CachingHostAllocator.h):
    38 GiB for 22 GiB of blocks. Here the system's pages are registered with CUDA, until the last tensor that uses them
    is gone. Raises OSError or RuntimeError if there is not enough memory.
    """
    memory = mmap.mmap(-1, size)  # shared with forked processes: private pages would be copied away from the GPU's
    buffer = torch.frombuffer(memory, dtype=torch.uint8)
    address = buffer.data_ptr()
    if int(torch.cuda.cudart().cudaHostRegister(address, size, _PORTABLE)) != 0:
        with suppress(RuntimeError):  # CUDA keeps the error, and the next kernel of anybody would raise it
            torch.empty(1, device=device).fill_(0)
        return torch.zeros(size, dtype=torch.uint8, pin_memory=True)
    weakref.finalize(buffer.untyped_storage(), _release, memory, address, device).atexit = False
    return buffer


def host_places(tensors: Iterable[Tensor]) -> list[Tensor]:
    """For each of `tensors` a place in host memory: of its shape, dtype and, if it is dense, strides, without values.

    Those of each device share one piece of memory, pinned for a GPU. Raises as `pinned_memory`, or MemoryError.
    """
    tensors = list(tensors)
    sizes = Counter[torch.device]()
    for tensor in tensors:
        sizes[tensor.device] += _room(tensor)
    pieces = {
        device: pinned_memory(size, device) if device.type == "cuda" and size else torch.empty(size, dtype=torch.uint8)
        for device, size in sizes.items()
    }
    used, places = Counter[torch.device](), list[Tensor]()
    for tensor in tensors:
        start = used[tensor.device]
        place = pieces[tensor.device][start : start + tensor.nbytes].view(tensor.dtype)
        places.append(
            place.as_strided(tensor.shape, torch.empty_like(tensor, device="meta").stride(), place.storage_offset())
        )
        used[tensor.device] += _room(tensor)
    return places


def _room(tensor: Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT


def _release(memory: mmap.mmap, address: int, device: torch.device) -> None:
    """`memory` is unmapped after this, when the finalizer forgets it."""
    with suppress(RuntimeError):  # of a GPU that has failed
        torch.cuda.synchronize(device)  # copies may be under way
    torch.cuda.cudart().cudaHostUnregister(address)
