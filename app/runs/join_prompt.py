"""The join line and messages of a multi-machine run that waits for the others, from its `joining` events."""

from __future__ import annotations

from dataclasses import dataclass

from modules.run.view.run_view import RunView


@dataclass(frozen=True)
class JoinPrompt:
    """The line to run on each of the other machines, and the latest messages about them, oldest first."""

    line: str
    messages: tuple[str, ...]


def join_prompt_of(view: RunView, line: str, since: float) -> JoinPrompt | None:
    """The prompt of a run started at `since`; None if it is not waiting (yet). Takes the view's lock."""
    with view.lock:
        messages = tuple(message.text for message in view.joining if message.time >= since)
    return JoinPrompt(line, messages) if line and messages else None
