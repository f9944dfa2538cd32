"""Background work and its results on the Tk thread."""

from __future__ import annotations

import queue
import threading
import time
import tkinter as tk
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from app.background import Background
from modules.config import ConfigError


@pytest.fixture
def root(display: str) -> Iterator[tk.Tk]:
    root = tk.Tk()
    yield root
    root.destroy()


def wait(root: tk.Tk, condition: Callable[[], object]) -> None:
    until = time.monotonic() + 100
    while not condition():
        assert time.monotonic() < until
        root.update()
        time.sleep(0.005)


def fail(error: Exception) -> str:
    raise error


def test_results_come_back_on_the_tk_thread(root: tk.Tk) -> None:
    background = Background(root)
    results: list[tuple[int, bool]] = []
    for number in range(20):
        background.run(
            lambda number=number: number * 2,  # type: ignore[misc]
            lambda result: results.append((result, threading.current_thread() is threading.main_thread())),
        )
    wait(root, lambda: len(results) == 20)
    assert sorted(results) == [(number * 2, True) for number in range(20)]
    assert not root.tk.call("after", "info"), "it does not poll without pending work"


def test_failures_are_messages(root: tk.Tk) -> None:
    background = Background(root)
    results: list[str] = []
    background.run(lambda: fail(ConfigError("It is wrong.", "Make it right.")), results.append, results.append)
    background.run(lambda: fail(FileNotFoundError(2, "No such file", "a.yaml")), results.append, results.append)
    wait(root, lambda: len(results) == 2)
    assert sorted(results) == ["It is wrong. Make it right.", "a.yaml cannot be read or written: No such file."]


def test_bugs_are_raised_on_the_tk_thread(root: tk.Tk) -> None:
    reported: list[object] = []
    root.report_callback_exception = lambda kind, error, trace: reported.append(kind)
    Background(root).run(lambda: 1 // 0, reported.append)
    wait(root, lambda: reported)
    assert reported == [ZeroDivisionError]


def test_result_for_a_destroyed_widget_is_dropped(root: tk.Tk) -> None:
    reported: list[object] = []
    root.report_callback_exception = lambda kind, error, trace: reported.append(error)
    label, done = tk.Label(root), threading.Event()
    background = Background(root)
    background.run(done.wait, lambda _: label.configure(text="late"))
    label.destroy()
    done.set()
    wait(root, lambda: not root.tk.call("after", "info"))
    assert reported == []


class Widget:
    """Notes which thread frees it."""

    def __init__(self, freed_by: list[threading.Thread]) -> None:
        self._freed_by = freed_by

    def work(self) -> None:
        """What a thread is given."""

    def show(self, result: object) -> None:
        """What gets the result."""

    def fail(self) -> None:
        raise ConfigError("It is wrong.", "Make it right.")

    def __del__(self) -> None:
        self._freed_by.append(threading.current_thread())


class LateQueue(queue.SimpleQueue[Any]):
    """Returns from `put` only after what was put has been delivered."""

    def __init__(self) -> None:
        self.delivered = threading.Event()

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)
        del item
        self.delivered.wait(100)


@pytest.mark.parametrize("job", ["work", "fail"])
def test_only_the_tk_thread_frees_what_a_thread_was_given(root: tk.Tk, job: str) -> None:
    background, late = Background(root), LateQueue()
    freed_by: list[threading.Thread] = []
    background._results = late
    widget = Widget(freed_by)
    background.run(getattr(widget, job), widget.show)
    del widget
    wait(root, lambda: not background._pending)
    late.delivered.set()
    background._root_destroyed()
    for thread in background._threads:
        thread.join(100)
    assert freed_by == [threading.main_thread()]


def test_what_a_thread_still_uses_outlives_the_window(display: str) -> None:
    freed_by: list[threading.Thread] = []
    goes_on = threading.Event()

    def work(widget: Widget) -> None:
        goes_on.wait(100)

    root = tk.Tk()
    background = Background(root)
    background.run(partial(work, Widget(freed_by)), str)
    threads = background._threads
    root.destroy()
    del root, background
    goes_on.set()
    for thread in threads:
        thread.join(100)
    assert not freed_by
    next_root = tk.Tk()
    Background(next_root)
    next_root.destroy()
    assert freed_by == [threading.main_thread()]
