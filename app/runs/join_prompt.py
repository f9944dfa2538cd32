"""The join line and messages of a multi-machine run that waits for the others, from its `joining` events."""

from __future__ import annotations

from dataclasses import dataclass

from modules.run.view.run_view import RunView


@dataclass(frozen=True)
class JoinPrompt:
    """The line to run on each of the other machines, and the latest messages about them, oldest first.

    Nobody needs the line unless `by_hand`: the run starts all of them over ssh.
    """

    line: str
    messages: tuple[str, ...]
    by_hand: bool = True


def join_prompt_of(view: RunView, line: str, since: float) -> JoinPrompt | None:
    """The prompt of a run started at `since`; None if it is not waiting (yet). Takes the view's lock."""
    with view.lock:
        messages = tuple(message.text for message in view.joining if message.time >= since)
        by_hand, all_joined = view.joins_by_hand, view.all_joined
    return JoinPrompt(line, messages, by_hand) if line and messages and not all_joined else None
