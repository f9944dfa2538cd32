"""Compiles device.cpp once for an environment, into build/ of the checkout, which git ignores."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType

import torch
from filelock import FileLock

SOURCE = Path(__file__).with_name("device.cpp")
FOLDER = Path(__file__).resolve().parents[2] / "build" / "fake_cuda"
COMPILE_S = 280  # a busy machine takes three times the usual half a minute
FLAGS = ("-std=c++20", "-DUSE_DISTRIBUTED", "-DUSE_C10D_GLOO", "-O1", "-g0", "-fPIC", "-shared", "-w")


def obstacle() -> str:
    """Why it cannot be built here; empty if it can."""
    if sys.platform != "linux":
        return f"the pretended GPU is built on Linux, not on {sys.platform}"
    if torch.version.cuda is not None and not hasattr(torch.cuda, "pretended"):
        return "this torch is built with CUDA, which the pretended GPU would have to replace"
    if shutil.which("g++") is None:
        return "the pretended GPU is compiled with g++, which is not installed"
    if not (Path(sysconfig.get_paths()["include"]) / "Python.h").exists():
        return "the pretended GPU needs Python's headers (python3-dev)"
    return ""


def extension_file() -> Path:
    """The compiled device.cpp, which takes half a minute the first time. Raises RuntimeError with what g++ says."""
    parts = (SOURCE.read_bytes(), torch.__version__.encode(), sys.version.encode(), " ".join(FLAGS).encode())
    file = FOLDER / hashlib.sha256(b"\0".join(parts)).hexdigest()[:16] / "_fake_cuda.so"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if not file.exists():
                _compile(file)
    return file


@cache
def extension() -> ModuleType:
    """The module, in which all of device.cpp is registered with torch for the rest of the process."""
    spec = importlib.util.spec_from_file_location("_fake_cuda", extension_file())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compile(file: Path) -> None:
    home = Path(torch.__file__).parent
    include = (home / "include", home / "include/torch/csrc/api/include", Path(sysconfig.get_paths()["include"]))
    libraries = ("-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python", f"-Wl,-rpath,{home / 'lib'}")
    unfinished = file.with_suffix(f".{os.getpid()}")
    headers = (argument for folder in include for argument in ("-isystem", str(folder)))
    done = subprocess.run(
        ["g++", *FLAGS, *headers, str(SOURCE), "-o", str(unfinished), f"-L{home / 'lib'}", *libraries],
        capture_output=True,
        text=True,
        timeout=COMPILE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"g++ cannot compile {SOURCE.name} against torch {torch.__version__}:\n{done.stderr[:3000]}")
    unfinished.replace(file)
