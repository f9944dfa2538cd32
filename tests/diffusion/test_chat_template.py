"""What a foreign chat template may not do: run for ever, or fill the memory. It is jinja's sandbox that runs it."""

from __future__ import annotations

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from modules.config import ConfigError
from modules.diffusion.chat_template import limit_template_
from tests.families.tiny_flow_parts import qwen_tokenizer

CHAT = [{"role": "user", "content": "a cat"}]


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}", "does not end"),
        ("{% macro f(x) %}{% if x %}{{ f(x - 1) }}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(20) }}", "does not end"),
        (
            "{% set n = namespace(x='aaaa') %}{% for a in range(24) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "large a text",
        ),
    ],
)
def test_a_template_without_an_end_is_refused(template: str, said: str) -> None:
    tokenizer = qwen_tokenizer()
    tokenizer.chat_template = template
    limit_template_(tokenizer, "the chat template")
    with pytest.raises(ConfigError, match=f"^the chat template .*{said}"):
        tokenizer.apply_chat_template(CHAT, tokenize=False)


def test_another_one_says_what_it_said() -> None:
    limited, free = qwen_tokenizer(), qwen_tokenizer()
    limit_template_(limited, "the chat template")
    said = limited.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    assert "a cat" in said
    assert said == free.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)


def test_the_sandbox_is_still_jinjas() -> None:
    """The limits know its frames by the name that jinja gives them."""
    assert ImmutableSandboxedEnvironment().from_string("x").root_render_func.__code__.co_filename == "<template>"
