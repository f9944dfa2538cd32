"""Every sentence of the window is in app/texts, where it can be translated."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

APP = Path(__file__).resolve().parents[2] / "app"
FILES = sorted(file for file in APP.rglob("*.py") if APP / "texts" not in file.parents)
# A capital or lower-case word, a space, a lower-case word: what people read and programs do not.
SENTENCE = re.compile(r"[A-Za-z]{2,}[,.:]? [a-z]{2,}")
# What other programs say, which is looked for; and the names of threads.
READ = {
    'bad window path name ".',
    'invalid command name ".',
    "it must be ",
    ", or empty (null)",
    ", or empty",
    "ask for fonts",
    "Traceback (most recent call last)",
    "Training did not start:",
    " Ctrl-C ends the wait.",
    "end at once",
    "end of ",
}
# Arguments of widgets and of the cards of sections that are words for people.
WORDS_OF = {"Card": 0, "Button": 1, "text": 1, "add_card": 0}


def constants(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings of a file that are no docstrings, no words of code, no messages of assertions."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant() as docstring):
                skipped.add(docstring)
            case ast.Assert(msg=ast.expr() as message):
                skipped.update(ast.walk(message))
            case ast.Raise(exc=ast.Call(func=ast.Name(id="TypeError"), args=arguments)):  # a mistake in the code
                skipped.update(inside for argument in arguments for inside in ast.walk(argument))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.lineno, node.value


def words_of_widgets(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Words that are handed to a widget as they stand."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        place = WORDS_OF.get(name)
        if place is not None and len(node.args) > place:
            said = node.args[place]
            if isinstance(said, ast.Constant) and isinstance(said.value, str) and re.search("[A-Za-z]", said.value):
                yield node.lineno, said.value


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(APP)))
def test_no_sentence_stands_elsewhere(file: Path) -> None:
    tree = ast.parse(file.read_text("utf-8"))
    found = [(line, words) for line, words in constants(tree) if SENTENCE.search(words) and words not in READ]
    assert [*found, *words_of_widgets(tree)] == []
