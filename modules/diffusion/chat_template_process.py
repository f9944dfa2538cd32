"""Renders chat templates for chat_template.py, in a process of its own: a template of somebody else can take any time
and memory in a single expression, and jinja's sandbox limits neither, so it ends with this process.

It first writes an empty line, then answers each line of JSON that it reads, {"template": text, "variables": by name,
"seconds": limit}, with one: {"text": rendered}, {"error": why}, or {} for one that is too large. It exits when the time
is over, and when its input ends. It imports nothing of Tandem, so that it starts in a tenth of a second.
"""

from __future__ import annotations

import faulthandler
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_MIB: Final = 512
_MOST_CHARACTERS: Final = 1 << 22


def main() -> None:
    _limit_memory()
    _say("")
    for line in sys.stdin:
        request = json.loads(line)
        # a thread of Python would wait for an operation such as 9 ** (9 ** 9)
        faulthandler.dump_traceback_later(request["seconds"], exit=True)
        answer = _answer(request["template"], request["variables"])
        faulthandler.cancel_dump_traceback_later()
        _say(json.dumps(answer))


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        with suppress(ValueError, OSError):  # a lower limit stays
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_AS, (MOST_MIB << 20, MOST_MIB << 20))


def _answer(template: str, variables: dict[str, Any]) -> dict[str, str]:
    try:
        text = _compiled(template).render(**variables)
        text.encode()  # no tokenizer takes half a pair of surrogates
    except (MemoryError, OverflowError):
        return {}
    except Exception as error:  # noqa: BLE001  # a foreign program can raise anything
        return {"error": f"{type(error).__name__}: {error}"[:1000]}
    return {"text": text} if len(text) <= _MOST_CHARACTERS else {}


@lru_cache(maxsize=8)
def _compiled(template: str) -> Template:
    return environment().from_string(template)


def environment() -> ImmutableSandboxedEnvironment:
    """What transformers gives to chat templates, whose import takes a second; a test compares them."""
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols])
    made.filters["tojson"] = _to_json
    made.globals.update(raise_exception=_raise, strftime_now=lambda form: datetime.now().strftime(form))
    return made


class _Generation(Extension):
    """{% generation %}, which marks what the model says, and renders as its content."""

    tags = {"generation"}  # noqa: RUF012  (ClassVar would contradict the parent's declaration)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_content"), [], [], body).set_lineno(line)

    def _content(self, caller: Callable[[], str]) -> str:
        return caller()


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


if __name__ == "__main__":
    main()
