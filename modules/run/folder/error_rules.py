"""How to recognise the errors that runs fail with, and what to try after each: one table, for error_help.py."""

from __future__ import annotations

import errno
from dataclasses import dataclass, replace
from typing import Final

# What to try if other processes, not the failed rank itself, detected the failure.
_ADVICE_OF_KINDS: Final = {
    "gone": "See the end of log/launcher.txt and of its own log. If it was killed, `dmesg` shows whether memory "
    "ran out. Continue with --resume latest.",
    "stopped": "It was suspended: by Ctrl-Z, a debugger, `kill -STOP`, a hanging network drive, or a "
    "machine that is out of memory. Continue with --resume latest.",
    "lost": "Check that the machine is running and reachable over the network, then continue with --resume latest.",
    "hang": "The stacks of all ranks are in its log. If it hangs in the loader, check the disk or network drive of the "
    "images and try loader_workers=0; if it hangs in your own code, check that line. If the step really is that slow, "
    "raise step_timeout_s.",
    "mismatch": "All ranks must call the same collectives in the same order: look for code that only some ranks run, "
    "such as `if rank == 0` or a condition on the data, and try find_unused_parameters=true.",
    "launcher": "If nobody did this on purpose, memory may have run out: check `dmesg`. Continue with --resume latest.",
}


def advice_for_kind(kind: str) -> str:
    """What to try after a failure of this kind; empty if there is no general advice."""
    return _ADVICE_OF_KINDS.get(kind, "")


@dataclass(frozen=True)
class Rule:
    """Matches an error whose class is one of `names` or whose lower-case text contains one of `texts`.

    `of_torch` limits the texts to errors of torch's process groups: a download may time out or disconnect as well.
    """

    kind: str
    advice: str
    names: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    of_torch: bool = False


# Failures usually caused by another rank's failure.
SECONDARY_KINDS: Final = frozenset({"peer_lost", "timeout"})

_GPU_MEMORY = Rule(
    "out_of_memory",
    "Lower batch_size (gradient_accumulation_steps keeps the effective batch) or resolution, turn on "
    "gradient_checkpointing, use precision=bf16, or close other programs that use this GPU.",
    names=("OutOfMemoryError",),
    texts=(
        "cuda out of memory",  # torch's allocator
        "cuda error: out of memory",  # CUDA itself
        "cublas_status_alloc_failed",
        "cudnn_status_alloc_failed",
        "hip out of memory",
        "hip error: out of memory",
        "mps backend out of memory",
    ),
)
_GPU_MEMORY_AT_START = replace(
    _GPU_MEMORY,
    advice="The model, or the encoders that prepare the images, did not fit; batch_size does not affect that. Close "
    "other programs that use this GPU (nvidia-smi lists them), use precision=bf16 or a lower resolution, or shard the "
    "model across GPUs with training_mode=fully_sharded.",
)
_LIBRARY_MEMORY = Rule(
    "out_of_memory",
    "The library could not be initialised, most often because the GPU's memory is full: lower batch_size or close "
    "other programs that use this GPU. If nvidia-smi shows free memory, the driver does not fit this torch: update it.",
    texts=("cudnn_status_not_initialized", "cublas_status_not_initialized"),
)
_NCCL_MEMORY = Rule(
    "out_of_memory",
    "NCCL's own buffers did not fit into the GPU beside the model: lower batch_size, turn on gradient_checkpointing, "
    "or close other programs that use this GPU.",
    texts=("cuda failure 2 'out of memory'", "cuda failure 'out of memory'"),
)
_HOST_MEMORY = Rule(
    "host_memory",
    "Lower loader_workers, prefetch_factor or batch_size (while caching: cache_batch_size or resolution), or close "
    "other programs; this is the computer's main memory, not the GPU's.",
    names=("MemoryError",),
    texts=(
        "defaultcpuallocator: can't allocate memory",
        "cannot allocate memory",
        "not enough memory: you tried",
    ),
)
_SHARED_MEMORY = Rule(
    "host_memory",
    "Shared memory (/dev/shm) is full: start the container with --shm-size=8g, or set loader_workers=0. Between GPUs "
    "NCCL_SHM_DISABLE=1 does without.",
    texts=(
        "unable to open shared memory",
        "unable to allocate shared memory",
        "shared memory segment",  # NCCL
        "killed by signal: bus error",
        "insufficient shared memory",
    ),
)
_LOADER = Rule(
    "loader",
    "Usually memory ran out: lower loader_workers or prefetch_factor, or set loader_workers=0.",
    texts=("dataloader worker (pid",),
)
PORT_IN_USE: Final = "port_in_use"
_PORT = Rule(
    PORT_IN_USE,
    "The port is in use, possibly by another run. Set initial_port to another number, such as 12400, or end that run.",
    texts=("eaddrinuse", "address already in use"),
)
_PEER_LOST = Rule(
    "peer_lost",
    "Another rank ended first; its log in the run folder's log/ says why.",
    texts=(
        "connection closed by peer",
        "connection reset by peer",
        "broken pipe",
        "socket closed",
        "remote process exited",
        "ncclremoteerror",
        "connection was likely closed",
    ),
    of_torch=True,
)
_NCCL_CUDA = Rule(
    "nccl",
    "A CUDA function failed inside NCCL: the GPU's memory may be full, or the GPU or its driver failed. Lower "
    "batch_size, look at nvidia-smi; NCCL_DEBUG=INFO prints which function it was.",
    texts=("ncclunhandledcudaerror", "unhandled cuda error"),
)
PEER_ACCESS_ADVICE: Final = (
    "Between the GPUs of one machine set NCCL_P2P_DISABLE=1: in virtual machines, with an IOMMU and on some consumer "
    "cards the driver promises peer access that does not work (scripts/preflight.py checks each pair). In a container "
    "start with --shm-size=8g. --backend gloo does without NCCL"
)
_NCCL_FIRST = Rule(
    "process_group",
    f"{PEER_ACCESS_ADVICE}. Between machines NCCL_SOCKET_IFNAME names the network interface that they share.",
    texts=("watchdog caught collective",),
)
_NCCL_INIT = Rule(
    "nccl",
    "Try --backend gloo to see whether NCCL is the cause; on several machines set NCCL_SOCKET_IFNAME to "
    "the network interface they share; NCCL_DEBUG=INFO prints details.",
    names=("DistBackendError",),
    texts=(
        "nccl error",
        "ncclsystemerror",
        "ncclinternalerror",
        "ncclinvalidusage",
    ),
)
_DRIVER = Rule(
    "gpu",
    "The GPU or its driver failed. Run nvidia-smi; if it reports an error, restart the machine. If it "
    "happens again at the same step, set CUDA_LAUNCH_BLOCKING=1 to see where.",
    names=("AcceleratorError",),
    texts=("cuda error", "no cuda-capable device", "cuda driver", "unable to find an engine"),
)
_RENDEZVOUS = Rule(
    "process_group",
    "Not every process joined. Check that each machine was started with the same master_addr, initial_port and "
    "num_nodes, that the address is the first machine's, and that no firewall blocks the port.",
    names=("DistNetworkError", "DistStoreError", "RendezvousTimeoutError", "RendezvousConnectionError"),
    texts=("clients joined", "timed out", "timeout", "connection refused", "no route to host"),
    of_torch=True,
)
_HANG = Rule(
    "timeout",
    "Another rank did not respond in time: it hangs or is very slow. Check the last lines of the other "
    "ranks' logs; raise step_timeout_s if steps really take that long.",
    names=_RENDEZVOUS.names,
    texts=("timed out", "timeout", "watchdog caught collective"),
    of_torch=True,
)
_NETWORK_INTERFACE = Rule(
    "process_group",
    "Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to the network interface the machines share; `ip address` "
    "lists them.",
    texts=(
        "unable to find address for",
        "unable to resolve hostname",
        "makedeviceforhostname",
        "bind: cannot assign",
    ),
)
_DISK = Rule(
    "disk_full",
    "Free space on that disk, lower backups_kept, or set runs_dir and cache_dir to another disk; then "
    "continue with --resume latest.",
    texts=("no space left on device", "disk quota exceeded", "not enough space on the disk"),
)
_PERMISSION = Rule(
    "permission",
    "Give yourself write permission there, or set runs_dir and cache_dir to writable folders.",
    names=("PermissionError",),
    texts=("permission denied", "read-only file system"),
)
_INPUT_OUTPUT = Rule(
    "disk",
    "The disk, or the network drive, failed: see `dmesg`. Once it is well again, continue with --resume latest, or set "
    "runs_dir and cache_dir to another disk.",
    texts=("input/output error", "stale file handle"),
)
_OPEN_FILES = Rule(
    "open_files",
    "This process may not open more files: raise the limit with `ulimit -n 65536` (in a service LimitNOFILE=65536), or "
    "lower loader_workers; then continue with --resume latest.",
    texts=("too many open files",),
)
_INTERRUPT = Rule("interrupted", "Start again with --resume latest to continue.", names=("KeyboardInterrupt",))

_MISMATCH = Rule(
    "mismatch", advice_for_kind("mismatch"), texts=("collective mismatch", "detected mismatch between collectives")
)

_ALWAYS = (
    _INTERRUPT,
    _MISMATCH,
    _GPU_MEMORY,
    _LIBRARY_MEMORY,
    _NCCL_MEMORY,
    _SHARED_MEMORY,
    _LOADER,
    _HOST_MEMORY,
    _PORT,
    _DISK,
    _PERMISSION,
    _INPUT_OUTPUT,
    _OPEN_FILES,
    _NETWORK_INTERFACE,
)
# The first match wins. A lost peer comes before NCCL and timeouts, whose texts contain its message.
STARTING = (_GPU_MEMORY_AT_START, *_ALWAYS, _PEER_LOST, _NCCL_CUDA, _NCCL_FIRST, _RENDEZVOUS, _NCCL_INIT, _DRIVER)
TRAINING = (*_ALWAYS, _PEER_LOST, _NCCL_CUDA, _HANG, _NCCL_INIT, _DRIVER)

ERRNO_RULES: Final = {
    errno.ENOSPC: _DISK,
    errno.EDQUOT: _DISK,
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: _PERMISSION,
    errno.EIO: _INPUT_OUTPUT,
    errno.ESTALE: _INPUT_OUTPUT,
    errno.EMFILE: _OPEN_FILES,
    errno.ENFILE: _OPEN_FILES,
    errno.ENOMEM: _HOST_MEMORY,
    errno.EADDRINUSE: _PORT,
}
