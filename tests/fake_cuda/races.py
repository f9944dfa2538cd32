"""Data races between the streams of the pretended GPU, found by torch's own sanitizer, which is fed by hand."""

from __future__ import annotations

from typing import Any

from torch.cuda import _sanitizer  # torch_compat


class Races:
    """Every access of memory, and every order between streams, goes through here."""

    def __init__(self) -> None:
        self._handler = _sanitizer.EventHandler()

    def access(self, operator: str, stream: int, read: set[int], written: set[int], freed: set[int]) -> list[str]:
        """The races of an operator with those before it, a sentence each; the sets hold pointers, `freed` those of
        memory that was given back since the last call."""
        for pointer in freed:
            self._handler.tensors_accessed.ensure_tensor_does_not_exist(pointer)
        pointers = {pointer for pointer in read | written if pointer}
        for pointer in pointers:
            self._handler.tensors_accessed.ensure_tensor_exists(pointer)
        aliases = {pointer: [operator] for pointer in pointers}
        errors: list[Any] = self._handler._handle_kernel_launch(
            stream, (read - written) & pointers, written & pointers, set(), operator, aliases
        )
        return [
            f"{_named(error.current_access)} without waiting for {_named(error.previous_access)}" for error in errors
        ]

    def create_stream(self, stream: int) -> None:
        self._handler.syncs.create_stream(stream)

    def event_creation(self, event: int) -> None:
        self._handler._handle_event_creation(event)

    def event_record(self, event: int, stream: int) -> None:
        self._handler._handle_event_record(event, stream)

    def event_wait(self, event: int, stream: int) -> None:
        self._handler._handle_event_wait(event, stream)

    def event_synchronization(self, event: int) -> None:
        self._handler._handle_event_synchronization(event)


def _named(access: _sanitizer.Access) -> str:
    return f"{access.type.name.lower()} by {access.operator} on stream {access.stream}"
