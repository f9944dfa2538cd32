"""One machine that is reached over ssh, with strict limits: no text of it may become an option or a shell command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Final, Self

from pydantic import Field, ValidationError, field_validator

from modules.config import ConfigError
from modules.files import Record, control_character, printable
from modules.run.join.local_settings import check_local_settings

DEFAULT_PYTHON: Final = ".venv/bin/python"
MOST_MINUTES: Final = 1_000_000  # of max_minutes
MOST_HOURS: Final = MOST_MINUTES // 60
LONGEST_COMMAND: Final = 4000  # characters
_MAX_PATH: Final = 1000
_MAX_SETTINGS: Final = 50
_WORD: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}"
_IPV6: Final = r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:.]{0,40}(%[A-Za-z0-9_.-]{1,20})?"
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_TARGET: Final = re.compile(rf"({_WORD}@)?({_WORD}|{_IPV6})")
_FOLDER: Final = re.compile(r"~|~/.*|/.*", re.DOTALL)
_ALLOWED: Final = {
    "name": "use at most 40 letters, digits, dots, - and _, such as beta",
    "target": "use user@host, or a name of your ~/.ssh/config, such as me@10.0.0.2; the port has a field of its own",
    "folder": "use the whole path of Tandem's folder there, such as ~/tandem or /home/me/tandem",
    "python": f"use a path, such as {DEFAULT_PYTHON}, or a name, such as python3.12; empty means {DEFAULT_PYTHON}",
    "key": "use the path of a private key on this computer, such as ~/.ssh/rented; empty means what ~/.ssh/config says",
    "port": "use a number from 1 to 65535, or leave it empty",
    "price": "use what an hour costs, from 0 to 100,000, such as 1.89; 0 means that it is not known",
    "settings": "use NAME=VALUE, such as cache_dir=/scratch/cache",
    "stop_after": f"use hours from 0 to {MOST_HOURS:,}, such as 5; 0 means no limit",
    "then": f"use one line of at most {LONGEST_COMMAND:,} characters, such as 'vastai stop instance 1234'; empty means "
    "none",
    "idle_minutes": f"use minutes from 0 to {MOST_MINUTES:,}, such as 20; 0 means at once",
    "slurm": "use options of scripts/submit_slurm.py, such as --partition=gpu; none means that it is no login node",
}


class Host(Record):
    """A machine: its name in Tandem, what ssh connects to, where Tandem is there, and settings for that machine."""

    name: str
    target: str
    folder: str
    port: Annotated[int, Field(ge=1, le=65_535)] | None = None  # None: as in ~/.ssh/config, or 22
    python: Annotated[str, Field(max_length=_MAX_PATH)] = ""  # "": DEFAULT_PYTHON
    settings: Annotated[list[str], Field(max_length=_MAX_SETTINGS)] = Field(default_factory=list)
    key: Annotated[str, Field(max_length=_MAX_PATH)] = ""  # file of a private key here; "": as in ~/.ssh/config
    price: Annotated[float, Field(ge=0, le=100_000)] = 0.0  # of an hour, in any currency; 0: not known
    stop_after: Annotated[float, Field(ge=0, le=MOST_HOURS)] = 0.0  # hours of each start of a run there; 0: no limit
    then: Annotated[str, Field(max_length=LONGEST_COMMAND)] = ""  # runs here once all results of a run there are here
    idle_minutes: Annotated[float, Field(ge=0, le=MOST_MINUTES)] = 0.0  # in which nothing goes on there before `then`
    slurm: Annotated[list[str], Field(max_length=_MAX_SETTINGS)] = Field(default_factory=list)  # of each job there
    allow_differences: bool = False  # train even if code or versions there differ from this machine's

    @classmethod
    def make(
        cls,
        name: str,
        target: str,
        folder: str,
        *,
        port: int | None = None,
        python: str = "",
        key: str = "",
        price: float = 0.0,
        stop_after: float = 0.0,
        then: str = "",
        idle_minutes: float = 0.0,
        settings: Sequence[str] = (),
        slurm: Sequence[str] = (),
        allow_differences: bool = False,
    ) -> Self:
        """A host from what a person has typed. Raises ConfigError naming the field."""
        check_local_settings(settings)
        if idle_minutes and not then:
            raise ConfigError(
                f"host: idle_minutes is {idle_minutes:g}, and there is no command that would run after them; give one "
                "(then), or leave it out"
            )
        if stop_after and slurm:
            raise ConfigError(
                f"host: stop_after is {stop_after:g}, and a Slurm job that has paused is requeued; leave it out, and "
                "use --time (with --no-requeue, if it is to end there)"
            )
        fields: dict[str, object] = {"name": name, "target": target, "folder": folder, "port": port, "python": python}
        fields |= {"key": key, "price": price, "stop_after": stop_after, "then": then, "idle_minutes": idle_minutes}
        try:
            more = {**fields, "settings": list(settings), "slurm": list(slurm), "allow_differences": allow_differences}
            return cls(**more)  # type: ignore[arg-type]
        except ValidationError as error:
            where = str(error.errors(include_url=False, include_context=False)[0]["loc"][0])
            given = {**fields, "settings": ", ".join(settings), "slurm": " ".join(slurm)}[where]
            raise ConfigError(f"host: {where} is {printable(given, 200)!r}; {_ALLOWED[where]}") from None

    @field_validator("name", "target", "folder", "python", "key")
    @classmethod
    def _is_plain(cls, text: str) -> str:
        if control_character(text) or len(text) > _MAX_PATH or text.startswith("-"):
            raise ValueError("control characters, too long, or like an option")
        return text

    @field_validator("then")
    @classmethod
    def _is_one_line(cls, text: str) -> str:
        if control_character(text) or text.isspace():
            raise ValueError("not one line")
        return text

    @field_validator("name")
    @classmethod
    def _is_name(cls, text: str) -> str:
        return _matching(NAME, text)

    @field_validator("target")
    @classmethod
    def _is_target(cls, text: str) -> str:
        return _matching(_TARGET, text)

    @field_validator("folder")
    @classmethod
    def _is_folder(cls, text: str) -> str:
        return _matching(_FOLDER, text)

    @field_validator("slurm")
    @classmethod
    def _are_options(cls, words: list[str]) -> list[str]:
        if any(not each.startswith("--") or control_character(each) or len(each) > _MAX_PATH for each in words):
            raise ValueError("not --NAME=VALUE")
        return words

    @field_validator("settings")
    @classmethod
    def _are_settings(cls, settings: list[str]) -> list[str]:
        if any("=" not in each or control_character(each) or len(each) > _MAX_PATH for each in settings):
            raise ValueError("not NAME=VALUE")
        try:
            check_local_settings(settings)
        except ConfigError as error:
            raise ValueError(error.message) from None
        return settings

    def __str__(self) -> str:
        """For messages: "beta (me@10.0.0.2)"."""
        return self.name if self.name == self.target else f"{self.name} ({self.target})"


def _matching(pattern: re.Pattern[str], text: str) -> str:
    if pattern.fullmatch(text) is None:
        raise ValueError("is not allowed")
    return text
