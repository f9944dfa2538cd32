"""What is recorded about a failure, and which of several failures is the cause."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from modules.config import ConfigError, DataError
from modules.run import (
    Failure,
    RunFolder,
    explain_exception,
    forget_failures,
    give_room_back,
    record_failure,
    reserve_room,
    root_cause,
)
from modules.run.explanations import explain_text

GLOO_LOST = "[../third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:2043"


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
            "batch_size changes nothing",
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
            "process_group",
            "initial_port",
        ),
        (OSError(errno.EADDRINUSE, "Address already in use"), "process_group", "initial_port"),
        (
            error_named("DistStoreError", "Timed out after 60 seconds. 1/2 clients joined."),
            "process_group",
            "master_addr",
        ),
        (RuntimeError("Unable to find address for: eth7"), "process_group", "GLOO_SOCKET_IFNAME"),
        (error_named("AcceleratorError", "CUDA error: an illegal memory access"), "gpu", "nvidia-smi"),
        (OSError(errno.ENOSPC, "No space left on device", "a.partial"), "disk_full", "backups_kept"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), "disk_full", "backups_kept"),
        (PermissionError(errno.EACCES, "Permission denied", "cache"), "permission", "write permission"),
        (OSError(errno.EROFS, "Read-only file system", "cache"), "permission", "write permission"),
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


def test_the_same_time_out_means_a_hang_once_training_runs() -> None:
    error = error_named("DistBackendError", "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)")
    assert explain_exception(error).kind == "process_group"
    assert explain_exception(error, training=True).kind == "timeout"


def test_message_is_one_short_line_without_the_native_stack() -> None:
    error = RuntimeError("bad\n  thing\nException raised from f at x.cpp:5\nframe #0 " + "x" * 2000)
    assert explain_exception(error).message == "RuntimeError: bad thing"
    assert len(explain_exception(RuntimeError("x" * 2000)).message) < 600


def test_last_line_of_a_traceback_is_explained_alike() -> None:
    line = "torch.distributed.DistNetworkError: The server socket has failed, name: EADDRINUSE"
    assert explain_text(line).kind == "process_group"
    assert explain_text("torch.OutOfMemoryError: CUDA out of memory.").kind == "out_of_memory"
    assert explain_text("a: b c").message == "a: b c"


def test_cause_comes_before_echo_and_early_before_late(folder: RunFolder) -> None:
    assert root_cause(folder) is None
    record_failure(folder, Failure(0, "a", "peer_lost", "lost", time=1.0))
    assert root_cause(folder) == Failure(0, "a", "peer_lost", "lost", time=1.0)
    record_failure(folder, Failure(3, "b", "error", "later", time=3.0))
    cause = Failure(1, "b", "out_of_memory", "first", "less", "Traceback\n  line ü", time=2.0)
    record_failure(folder, cause)
    (folder.log_dir / "rank-9.error.json").write_text('{"rank": 9')
    assert root_cause(folder) == cause
    lines = folder.log_file(1).read_text(encoding="utf-8").splitlines()
    assert [line.split(" rank 1 ")[1] for line in lines] == ["Traceback", "  line ü"]
    forget_failures(folder, range(4))
    assert root_cause(folder) is None


def test_recording_never_hides_the_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("a file where the folder should be")
    record_failure(RunFolder(tmp_path / "x"), Failure(0, "a", "error", "the real reason"))
    assert "the real reason" in capfd.readouterr().err


def test_what_a_rank_said_itself_is_not_written_over_by_others(folder: RunFolder) -> None:
    own = Failure(1, "b", "error", "my own words", time=1.0)
    record_failure(folder, own, unless_there=True)
    record_failure(folder, Failure(1, "b", "gone", "it has gone", time=2.0), unless_there=True)
    assert root_cause(folder) == own


def test_the_reserve_takes_the_last_words_where_no_file_can_be_made(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserve_room(folder, 1)
    monkeypatch.setattr(Path, "write_text", _full_disk)  # a real full disk is in tests/end_to_end/test_fault_suite.py
    failure = Failure(1, "b", "disk_full", "No space left on device", time=1.0)
    record_failure(folder, failure)
    assert root_cause(folder) == failure
    give_room_back(folder, range(2))
    assert [path.name for path in folder.log_dir.iterdir()] == ["rank-1.error.json"]


def _full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_failure_of_an_exception() -> None:
    failure = Failure.of(ConfigError("bad", "good"), rank=2, traceback="Traceback")
    assert (failure.rank, failure.kind, failure.message, failure.advice) == (2, "config", "bad", "good")
    assert failure.host


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
def test_a_download_that_breaks_off_is_no_failure_of_the_process_group(error: Exception) -> None:
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
def test_torchs_own_time_outs_and_losses_are_known(line: str, kind: str) -> None:
    assert explain_text(line, training=True).kind == kind


def test_memory_that_ends_in_training_is_a_matter_of_the_batch_and_before_it_of_the_model() -> None:
    error = error_named("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB")
    assert explain_exception(error, training=True).advice.startswith("Lower batch_size")
    assert "training_mode=fully_sharded" in explain_exception(error).advice
