"""What a foreign chat template may not do: run for ever, or fill the memory, in many steps or in one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils import chat_template_utils

from modules.config import ConfigError
from modules.diffusion import chat_template, chat_template_process
from modules.diffusion.chat_template import limit_template_, limited_template
from tests.families.tiny_flow_parts import qwen_tokenizer

CHAT = [{"role": "user", "content": "a cat"}]
LONG = "{% set n = namespace(x='aaaa') %}{% for a in range(18) %}{% set n.x = n.x ~ n.x %}{% endfor %}"  # 1 MiB
DEEP = "{% set n = namespace(x=['a']) %}{% for a in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
ENDLESS = [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{{ 9 ** (9 ** 9) }}",
    "{{ lipsum(n=10**9) }}",
    f"{LONG}{{{{ range(99999)|map('replace', '1', n.x)|join|length }}}}",
]
LARGE = [
    "{{ 'a' * 10**10 }}",
    "{{ (range(99999)|list) * 99999 }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (10**9, 1) }}",
    "{{ '%10000000000d'|format(1) }}",
    "{{ '{:{w}}'.format(1, w=10**10) }}",
    "{{ 'a'|center(10**10) }}",
    "{% if 'a'|indent(10**10, true) %}{% endif %}",
    "{{ 'a'.zfill(10**10) }}",
    "{{ [1]|batch(10**10, 'x')|list }}",
    "{{ [1]|tojson(indent=10**10) }}",
    "{{ (1).to_bytes(10**11, 'big') }}",
    f"{LONG}{{{{ n.x.replace('', n.x) }}}}",
    f"{LONG}{{{{ n.x|list|join(n.x) }}}}",
    f"{LONG}{{{{ {'n.x ~ ' * 800} n.x }}}}",
    f"{LONG}{{{{ [{'n.x[1:], ' * 800}] }}}}",
    f"{LONG}{{% for a in range(999) %}}{{{{ n.x }}}}{{% endfor %}}",
]


@pytest.mark.slow
@pytest.mark.parametrize("template", [*ENDLESS, *LARGE])
def test_a_template_without_an_end_is_refused(template: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "_MOST_SECONDS", 0.5 if template in ENDLESS else 60)
    with pytest.raises(ConfigError, match=r"^the chat template cannot be used: it takes more than .* s or 512 MiB"):
        rendered(template)
    monkeypatch.undo()
    assert rendered("{{ messages[0].content }}") == "a cat", "another one still is"


@pytest.mark.slow
@pytest.mark.parametrize("end", ["n.x", "n.x|tojson", "n.x == m.x"])
def test_lists_that_hold_one_another(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small ones, whose text or comparison has 2**60 parts."""
    monkeypatch.setattr(chat_template, "_MOST_SECONDS", 0.5)
    other = DEEP.replace("n = ", "m = ").replace("n.", "m.")
    with pytest.raises(ConfigError, match="it takes more than"):
        rendered(f"{DEEP}{other}{{{{ {end} }}}}")


def test_a_process_that_cannot_limit_its_memory_is_ended() -> None:
    """As on Windows and macOS."""
    hungry = subprocess.Popen([sys.executable, "-c", "x = b'x' * (600 << 20); input()"], stdin=subprocess.PIPE)
    with chat_template._watched(hungry.pid):
        assert hungry.wait(60) != 0
    hungry.communicate()


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{{ raise_exception('only\\x1b[2J users') }}", r"TemplateError: only\x1b[2J users."),
        ("{{ raise_exception('a' * 99999) }}", "aaaaaa…."),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero."),
        ("{% include 'x' %}", "TypeError: no loader for this environment specified."),
        ("{{ cycler.__init__.__globals__ }}", "SecurityError: access to attribute"),
        (f"{{{{ {'(' * 5000}1{')' * 5000} }}}}", "RecursionError: maximum recursion depth exceeded"),
        ("{% if %}", "TemplateSyntaxError: Expected an expression"),
        ("{{ '\\ud800' }}", "surrogates not allowed"),
    ],
)
def test_an_error_of_a_template_is_one_sentence(template: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"^the chat template cannot be used: .*{re.escape(said)}"):
        rendered(template)


@pytest.mark.parametrize("template", LARGE[:12])
def test_nothing_of_a_template_is_computed_to_list_its_variables(template: str) -> None:
    """As processors of images and text do; jinja computes what is constant."""
    with limited_template("the chat template"):
        assert chat_template_utils._get_template_variables(template) <= {"messages"}


def test_a_processor_that_lists_the_variables_of_a_nested_one() -> None:
    with pytest.raises(ConfigError, match="cannot be used: maximum recursion depth"), limited_template("the template"):
        chat_template_utils._get_template_variables(f"{{{{ {'[' * 5000}{']' * 5000} }}}}")


def rendered(template: str) -> str:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = template
    limit_template_(tokenizer, "the chat template")
    return str(tokenizer.apply_chat_template(CHAT, tokenize=False))


@pytest.fixture
def unlimited(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """transformers as it was."""
    chat_template_utils._compile_jinja_template.cache_clear()
    monkeypatch.setattr(chat_template_utils, "ImmutableSandboxedEnvironment", ImmutableSandboxedEnvironment)
    yield
    chat_template_utils._compile_jinja_template.cache_clear()


@pytest.mark.parametrize(
    "template",
    [
        "",
        "{% generation %}{{ messages|tojson }}{% endgeneration %}{{ strftime_now('x') }}{{ eos_token }}",
        "{% for a in messages %}\n  {% if add_generation_prompt %}\né{{ a.role }}\n{% break %}{% endif %}{% endfor %}",
    ],
)
def test_another_one_says_what_it_said(template: str, unlimited: None) -> None:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    said = tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    chat_template_utils._compile_jinja_template.cache_clear()
    limit_template_(tokenizer, "the chat template")
    assert said == tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)


def test_it_is_given_what_transformers_gives(unlimited: None) -> None:
    theirs = chat_template_utils._cached_compile_jinja_template("x").environment
    ours = chat_template_process.environment()
    for name in ("filters", "tests", "globals"):
        assert vars(theirs)[name].keys() == vars(ours)[name].keys()
    for name in ("trim_blocks", "lstrip_blocks", "keep_trailing_newline", "autoescape", "undefined", "optimized"):
        assert vars(theirs)[name] == vars(ours)[name]
    assert {tag for each in theirs.extensions.values() for tag in each.tags} == {
        tag for each in ours.extensions.values() for tag in each.tags
    }


def test_a_process_that_somebody_ended_is_started_again() -> None:
    assert rendered("x") == "x"
    process = chat_template._process(os.getpid())
    process.kill()
    process.wait()
    assert rendered("y") == "y"


def test_it_ends_with_this_process_though_a_forked_one_keeps_its_input_open() -> None:
    assert rendered("x") == "x"
    process = chat_template._process(os.getpid())
    assert process.stdin is not None
    kept = os.dup(process.stdin.fileno())  # as a loader worker has it
    ending = threading.Thread(target=chat_template._end, args=(process, os.getpid()))
    ending.start()
    ending.join(5)
    is_over = not ending.is_alive()
    os.close(kept)
    ending.join()
    assert is_over
