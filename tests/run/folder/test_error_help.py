"""Kind and advice of exceptions."""

from __future__ import annotations

import errno

import pytest

from modules.config import ConfigError, DataError
from modules.run.folder.error_help import explain_exception, explain_text

GLOO_LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2043"

# The words of CUDA (c10/cuda/CUDAException.cpp) and of NCCL (torch's NCCLUtils.hpp prints its last error).
CUDA_OUT_OF_MEMORY = (
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some other API call"
)
NCCL_CUDA_FAILURE = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:77, unhandled cuda error (run with "
    "NCCL_DEBUG=INFO for details), NCCL version 2.27.5\nncclUnhandledCudaError: Call to CUDA function failed."
)
NCCL_OUT_OF_MEMORY = f"{NCCL_CUDA_FAILURE}\nLast error:\nCuda failure 2 'out of memory'"


def error_named(name: str, text: str) -> Exception:
    made = type(name, (RuntimeError,), {})(text)
    assert isinstance(made, Exception)
    return made


@pytest.mark.parametrize(
    ("error", "kind", "advice"),
    [
        (ConfigError("resolution is 7", "use 8"), "config", "use 8"),
        (DataError("no pictures"), "data", ""),
        (
            error_named("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB"),
            "out_of_memory",
            "batch_size does not affect that",
        ),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "host_memory", "main memory"),
        (MemoryError(), "host_memory", "loader_workers"),
        (
            RuntimeError("DataLoader worker (pid 5) is killed by signal: Bus error."),
            "host_memory",
            "--shm-size",
        ),
        (RuntimeError(GLOO_LOST), "peer_lost", "Another rank"),
        (RuntimeError("[gloo/a.cc:5] Read error [::1]: Connection reset by peer"), "peer_lost", "Another rank"),
        (RuntimeError("DataLoader worker (pid 5) is killed by signal: Killed."), "loader", "loader_workers"),
        (
            error_named("DistBackendError", "NCCL error in: x.cpp, ncclRemoteError: connection closed"),
            "peer_lost",
            "",
        ),
        (
            error_named("DistBackendError", "NCCL error in: x.cpp:5, unhandled system error"),
            "nccl",
            "--backend gloo",
        ),
        (
            error_named("DistNetworkError", "failed to listen, name: EADDRINUSE"),
            "port_in_use",
            "initial_port",
        ),
        (OSError(errno.EADDRINUSE, "Address already in use"), "port_in_use", "initial_port"),
        (
            error_named("DistStoreError", "Timed out after 60 seconds. 1/2 clients joined."),
            "process_group",
            "master_addr",
        ),
        (RuntimeError("Unable to find address for: eth7"), "process_group", "GLOO_SOCKET_IFNAME"),
        (error_named("AcceleratorError", "CUDA error: an illegal memory access"), "gpu", "nvidia-smi"),
        (error_named("AcceleratorError", CUDA_OUT_OF_MEMORY), "out_of_memory", "did not fit"),
        (RuntimeError(CUDA_OUT_OF_MEMORY), "out_of_memory", "did not fit"),
        (RuntimeError("HIP error: out of memory"), "out_of_memory", "did not fit"),
        (RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"), "out_of_memory", "did not fit"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
            "out_of_memory",
            "",
        ),
        (RuntimeError("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"), "out_of_memory", "nvidia-smi"),
        (
            RuntimeError("CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate`"),
            "out_of_memory",
            "driver",
        ),
        (error_named("DistBackendError", NCCL_OUT_OF_MEMORY), "out_of_memory", "NCCL's own buffers"),
        (error_named("DistBackendError", NCCL_CUDA_FAILURE), "nccl", "NCCL_DEBUG=INFO"),
        (OSError(errno.ENOSPC, "No space left on device", "a.partial"), "disk_full", "backups_kept"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "disk_full", "backups_kept"),
        (PermissionError(errno.EACCES, "Permission denied", "cache"), "permission", "write permission"),
        (OSError(errno.EROFS, "Read-only file system", "cache"), "permission", "write permission"),
        (OSError(errno.EIO, "Input/output error", "cache"), "disk", "dmesg"),
        (OSError(errno.EMFILE, "Too many open files", "cache"), "open_files", "ulimit -n"),
        (KeyboardInterrupt(), "interrupted", "--resume latest"),
        (SystemExit(7), "error", ""),
        (ZeroDivisionError("division by zero"), "error", ""),
    ],
)
def test_explanations(error: BaseException, kind: str, advice: str) -> None:
    explanation = explain_exception(error)
    assert explanation.kind == kind
    assert advice in explanation.advice
    assert explanation.message
    assert "\n" not in explanation.message


def test_timeout_during_training_is_a_hang() -> None:
    error = error_named("DistBackendError", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)")
    first = explain_exception(error)
    assert first.kind == "process_group"
    assert "NCCL_P2P_DISABLE=1" in first.advice
    assert "master_addr" not in first.advice
    assert explain_exception(error, training=True).kind == "timeout"


def test_message_is_one_line_without_native_stack() -> None:
    error = RuntimeError("bad\n  thing\nException raised from f at x.cpp:5\nframe #0 " + "x" * 2000)
    assert explain_exception(error).message == "RuntimeError: bad thing"
    assert len(explain_exception(RuntimeError("x" * 2000)).message) < 600


def test_last_traceback_line_is_explained() -> None:
    line = "torch.distributed.DistNetworkError: The server socket has failed, name: EADDRINUSE"
    assert explain_text(line).kind == "port_in_use"
    assert explain_text("torch.OutOfMemoryError: CUDA out of memory.").kind == "out_of_memory"
    assert explain_text("a: b c").message == "a: b c"


@pytest.mark.parametrize(
    "error",
    [
        TimeoutError("The read operation timed out"),
        ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"),
        BrokenPipeError(errno.EPIPE, "Broken pipe"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        RuntimeError("The request for model.safetensors timed out"),
    ],
)
def test_download_errors_are_not_process_group_errors(error: Exception) -> None:
    for training in (False, True):
        assert explain_exception(error, training=training).kind == "error"
    assert explain_text(f"{type(error).__name__}: {error}").kind == "error"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("RuntimeError: [../third_party/gloo/gloo/transport/tcp/buffer.cc:81] Timed out waiting 5000ms", "timeout"),
        ("RuntimeError: [gloo/transport/tcp/pair.cc:5] writev [10.0.0.2]:5: Broken pipe", "peer_lost"),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes. Connection was likely closed.", "peer_lost"),
        ("torch.distributed.DistStoreError: wait timeout after 5000ms, keys: /a", "timeout"),
        ("RuntimeError: [c10d] The client socket has timed out after 5000ms", "timeout"),
        ("torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: Connection refused", "timeout"),
    ],
)
def test_torch_timeouts_and_lost_peers(line: str, kind: str) -> None:
    assert explain_text(line, training=True).kind == kind


def test_a_cuda_failure_within_nccl_is_not_a_network_problem() -> None:
    for training in (False, True):
        advice = explain_exception(error_named("DistBackendError", NCCL_CUDA_FAILURE), training=training).advice
        assert "nvidia-smi" in advice
        assert "NCCL_SOCKET_IFNAME" not in advice


@pytest.mark.parametrize("text", [CUDA_OUT_OF_MEMORY, NCCL_OUT_OF_MEMORY, "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"])
def test_out_of_memory_in_a_step_asks_for_a_smaller_batch(text: str) -> None:
    name = "DistBackendError" if "NCCL" in text else "AcceleratorError"
    explanation = explain_exception(error_named(name, text), training=True)
    assert explanation.kind == "out_of_memory"
    assert "batch_size" in explanation.advice


def test_out_of_memory_advice_depends_on_phase() -> None:
    error = error_named("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB")
    assert explain_exception(error, training=True).advice.startswith("Lower batch_size")
    assert "training_mode=fully_sharded" in explain_exception(error).advice
