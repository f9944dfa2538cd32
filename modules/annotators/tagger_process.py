"""Runs the model of a tagger for tags.py, in a process of its own: onnxruntime takes any time and memory to load or run
what somebody else has made, and nothing stops it between two of its operations, so it ends with this process.

Its arguments are the file, the seconds that loading may take and an image may, and "gpu" or "cpu". It says the shapes
of the input and the output, {"input": [...], "output": [...]}, then answers batches of images until its input ends.
Each message is a line of JSON, {"shape": [...]}, and the 32-bit numbers of this shape; {"error": why} has none. It
exits with code 1 when the time is over, and only then. It imports nothing of Tandem, so that it starts at once.
"""

from __future__ import annotations

import faulthandler
import json
import math
import sys
from contextlib import suppress
from typing import Any, Final

import numpy as np
import psutil

_MOST_FOLDED: Final = 1 << 28  # bytes of a constant that is computed when a model is loaded


def main(file: str, loading_s: str, image_s: str, device: str) -> None:
    """Answer until the input ends."""
    faulthandler.dump_traceback_later(float(loading_s), exit=True)  # a thread of Python could not end onnxruntime
    try:
        session = _loaded(file, on_gpu=device == "gpu")
        given, made = session.get_inputs()[0], session.get_outputs()[0]
    except Exception as error:  # noqa: BLE001  # onnxruntime has an exception of its own for each status
        _say(error=_described(error))
        return
    _say(input=given.shape, output=made.shape)
    faulthandler.cancel_dump_traceback_later()
    while line := sys.stdin.buffer.readline():
        images = None
        try:
            shape = json.loads(line)["shape"]
            faulthandler.dump_traceback_later(float(image_s) * shape[0], exit=True)
            images = np.frombuffer(sys.stdin.buffer.read(4 * math.prod(shape)), np.float32).reshape(shape)
            answer = np.asarray(session.run([made.name], {given.name: images})[0], np.float32)
            _say(answer.tobytes(), shape=answer.shape)
        except Exception as error:  # noqa: BLE001  # as above; also for too little memory
            _say(error=_described(error))
            if images is None:  # what is left of them would be taken for a header
                return
        faulthandler.cancel_dump_traceback_later()


def _loaded(file: str, *, on_gpu: bool) -> Any:
    import onnxruntime

    _limit_memory(onnxruntime, on_gpu=on_gpu)
    wanted = ["CUDAExecutionProvider"] * on_gpu + ["CPUExecutionProvider"]
    providers = [each for each in wanted if each in onnxruntime.get_available_providers()]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.use_env_allocators", "1")  # those of _limit_memory
    options.add_session_config_entry("optimization.constant_folding_max_output_size_in_bytes", str(_MOST_FOLDED))
    options.log_severity_level = 4  # errors are raised
    return onnxruntime.InferenceSession(file, options, providers=providers)


def _say(numbers: bytes = b"", **header: object) -> None:
    sys.stdout.buffer.write(f"{json.dumps(header)}\n".encode() + numbers)
    sys.stdout.flush()


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:1000]


def _limit_memory(onnxruntime: Any, *, on_gpu: bool) -> None:
    """Take no more than the memory that is free now: the system would grant more, and end this process, or another one,
    when it is used."""
    free = psutil.virtual_memory().available
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"max_mem": free}))
    if sys.platform != "win32" and not on_gpu:  # whose driver takes more than it uses
        import resource

        with suppress(ValueError, OSError):  # a lower limit stays
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_DATA, (free, free))


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:  # noqa: BLE001  # with which Python would exit with code 1
        sys.exit(2)
