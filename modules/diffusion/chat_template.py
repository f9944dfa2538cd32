"""Chat templates of other people's tokenizers: programs in jinja's sandbox, which limits neither steps nor sizes."""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, Final

import psutil
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils import chat_template_utils

from modules.config import ConfigError
from modules.diffusion import chat_template_process
from modules.diffusion.base_model_files import DAMAGED
from modules.files import printable

_MOST_SECONDS: Final = 10  # published ones take a millisecond
_MOST_BYTES: Final = chat_template_process.MOST_MIB << 20
_LOOKED_AT_S: Final = 0.05
_one_at_a_time = threading.Lock()


@contextmanager
def limited_template(label: str) -> Iterator[None]:
    """Inside, and from then on in this process, a template that takes too long, or makes too large a value, or raises
    an error, is a ConfigError: `label` and that."""
    vars(chat_template_utils)["ImmutableSandboxedEnvironment"] = _Environment
    try:
        yield
    except (TemplateError, RecursionError) as error:
        raise ConfigError(f"{label} cannot be used: {printable(error, 300).rstrip('.')}.", DAMAGED) from None


def limit_template_(tokenizer: Any, label: str) -> None:
    """Let the `apply_chat_template` of a tokenizer, which pipelines of diffusers call, too, be limited."""
    tokenizer.apply_chat_template = partial(_applied, tokenizer.apply_chat_template, label)


def _applied(apply: Any, label: str, *args: Any, **kwargs: Any) -> Any:
    with limited_template(label):
        return apply(*args, **kwargs)


class _Environment(ImmutableSandboxedEnvironment):
    """What transformers makes for each template. It computes nothing here, not even constants, as parsing would."""

    intercepted_binops = frozenset(ImmutableSandboxedEnvironment.default_binop_table)

    def from_string(self, source: Any, *args: Any, **kwargs: Any) -> Any:
        self.filters = dict.fromkeys(self.filters, _nothing)
        self.tests = dict.fromkeys(self.tests, _nothing)
        return _Template(self, source)


class _Template:
    def __init__(self, environment: _Environment, source: str) -> None:
        self.environment, self._source = environment, source

    def render(self, **variables: object) -> str:
        request = {"template": self._source, "variables": variables, "seconds": _MOST_SECONDS}
        answer = _answered(json.dumps(request, default=lambda value: f"<{type(value).__name__}>"))
        if "text" not in answer:
            most = f"{_MOST_SECONDS} s or {chat_template_process.MOST_MIB} MiB"
            raise TemplateError(answer.get("error", f"it takes more than {most}, or makes too long a text"))
        return answer["text"]


def _nothing(*args: object, **kwargs: object) -> None:
    raise TemplateError("it is computed in another process")


def _answered(request: str) -> dict[str, str]:
    with _one_at_a_time:
        process = _process(os.getpid())
        if process.poll() is not None:  # somebody has ended it
            _process.cache_clear()
            process = _process(os.getpid())
        assert process.stdin is not None
        assert process.stdout is not None
        line = ""
        try:
            process.stdin.write(f"{request}\n")
            process.stdin.flush()
            with _watched(process.pid):
                line = process.stdout.readline()
        finally:
            if not line:  # it has ended; or this was interrupted, and its answer would be taken for the next one
                _process.cache_clear()
                process.kill()
                process.communicate()
        answer: dict[str, str] = json.loads(line or "{}")
        return answer


@contextmanager
def _watched(pid: int) -> Iterator[None]:
    """Inside, a process that takes too much memory is ended: only Linux lets it limit itself exactly."""
    is_done = threading.Event()

    def watch() -> None:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            while not is_done.wait(_LOOKED_AT_S):
                if process.memory_info().rss > _MOST_BYTES:
                    process.kill()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        is_done.set()
        watcher.join()


@lru_cache(maxsize=1)
def _process(pid: int) -> subprocess.Popen[str]:
    """The process that renders for this one, ready for a request; a forked one has its own."""
    process = subprocess.Popen(
        [sys.executable, "-P", chat_template_process.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # on which it says that the time is over
        text=True,
        encoding="utf-8",
        start_new_session=True,  # Ctrl-C in a terminal is handled by this process
    )
    atexit.register(_end, process, pid)
    assert process.stdout is not None
    if not process.stdout.readline():
        raise OSError(f"the process that renders chat templates ended with exit code {process.wait()}")
    return process


def _end(process: subprocess.Popen[str], pid: int) -> None:
    if pid == os.getpid():
        process.kill()  # a forked process, such as one that loads data, would keep its input open
        process.communicate()
