"""Explains an exception to the user: its kind, one sentence, and what to try."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from modules.config import TandemError
from modules.config.code_errors import describe_code_error, failed_line
from modules.files import write_fault
from modules.run.folder.error_rules import ERRNO_RULES, STARTING, TRAINING, Rule


class Explanation(NamedTuple):
    """`kind` is an identifier for programs, `message` what happened, `advice` what to try."""

    kind: str
    message: str
    advice: str


# How to recognise errors of torch's process groups and stores: by class, or by the component named in the text.
_TORCH_NAMES: Final = re.compile(r"Dist(Network|Store|Backend)?Error|Rendezvous\w*|GroupError")
_TORCH_TEXTS: Final = re.compile(r"\bgloo\b|\[c10d\]|tcpstore|processgroup|\bnccl|connection closed by peer")
_MAX_MESSAGE_CHARS = 500


def explain_exception(error: BaseException, *, training: bool = False) -> Explanation:
    """Explain any exception; `training`: whether the first step was reached."""
    if isinstance(error, TandemError):
        return Explanation(error.kind, error.message, error.advice)
    if isinstance(error, SystemExit):
        if not failed_line(error):
            return Explanation("error", f"The program exited with code {error.code!r}.", "")
        return Explanation("error", f"{describe_code_error(error)}.", "Let it raise an exception that says why.")
    names = {cls.__name__ for cls in type(error).__mro__}
    rule = ERRNO_RULES.get(error.errno or 0) if isinstance(error, OSError) else None
    found = _explain(rule, type(error).__name__, names, str(error), training)
    if isinstance(error, OSError) and (fault := write_fault(error)) not in {error.strerror, str(error)}:
        found = found._replace(message=f"{found.message} ({fault})")
    place = failed_line(error) if found.kind == "error" else ""
    return found._replace(message=f"{place}: {found.message}") if place else found


def explain_text(line: str, *, training: bool = False) -> Explanation:
    """Explain the last line of a traceback, such as "torch.distributed.DistStoreError: Timed out"."""
    name, colon, text = line.strip().partition(": ")
    if not colon or " " in name:
        name, text = "", line.strip()
    name = name.rsplit(".", 1)[-1]
    return _explain(None, name, {name}, text, training)


def _explain(rule: Rule | None, name: str, names: set[str], text: str, training: bool) -> Explanation:
    lower = text.lower()
    if rule is None:
        rules = TRAINING if training else STARTING
        rule = next((each for each in rules if _matches(each, names, lower)), None)
    message = ": ".join(part for part in (name, _first_lines(text)) if part)
    return Explanation(rule.kind, message, rule.advice) if rule else Explanation("error", message, "")


def _matches(rule: Rule, names: set[str], lower: str) -> bool:
    if not names.isdisjoint(rule.names):
        return True
    if rule.of_torch and not (any(map(_TORCH_NAMES.fullmatch, names)) or _TORCH_TEXTS.search(lower)):
        return False
    return any(text in lower for text in rule.texts)


def _first_lines(text: str) -> str:
    """The text as one line, without the C++ stack that torch appends."""
    plain = text.split("Exception raised from", 1)[0].split("C++ CapturedTraceback", 1)[0]
    joined = " ".join(plain.split())
    return joined if len(joined) <= _MAX_MESSAGE_CHARS else joined[: _MAX_MESSAGE_CHARS - 1] + "…"
