"""What machine 0 sends to a joining machine, checked: it may be anybody who has sent a join line."""

from __future__ import annotations

from typing import Annotated, Literal, TypeVar

from pydantic import Field, JsonValue

from modules.files import FileFault, Record, printable, validate_record
from modules.machine import set_hostname
from modules.run.join.channel import Message
from modules.run.join.members import JoinError

R = TypeVar("R", bound=Record)


class Welcome(Record):
    """What machine 0 tells a machine that it accepts."""

    host: str
    number: Annotated[int, Field(ge=1, lt=1 << 20)]
    machines: Annotated[int, Field(ge=2, lt=1 << 20)]
    config: dict[str, JsonValue]
    run_name: str
    nonce: str
    family: str
    preflight: Literal["", "with config", "without config"] = ""  # of a preflight: whether machine 0 has a config
    notes: list[str] = Field(default_factory=list)
    folder_proofs: list[str] = Field(default_factory=list)


class Start(Record):
    """How all machines start their processes."""

    counts: list[Annotated[int, Field(ge=0, le=1024)]]  # of processes, by machine; 0 for one that does not take part
    port: Annotated[int, Field(ge=1, le=65_535)]
    nonce: str
    # a word of the command of the ranks: neither an option nor with control characters
    resume: Annotated[str, Field(pattern=r"^([^-\p{Cc}\p{Zl}\p{Zp}][^\p{Cc}\p{Zl}\p{Zp}]*)?$")] = ""
    restarts_left: Annotated[int, Field(ge=0)] = 0
    names: list[Annotated[str, Field(max_length=300)]] = Field(default_factory=list)  # of the machines, all different

    def take_name(self, number: int) -> None:
        """From now on, messages name this machine, of this number, as all others do."""
        if number < len(self.names):
            set_hostname(printable(self.names[number]))


def record(kind: type[R], message: Message) -> R:
    """The message of machine 0, which may be anybody with a join line, as a record. Raises JoinError."""
    try:
        return validate_record(kind, message)
    except FileFault as fault:
        raise JoinError(
            f"a message of machine 0 {fault}", "Install the same version of Tandem on both machines"
        ) from None
