"""Texts on a terminal, in the window or in a log: shown, not obeyed, and without passwords."""

from __future__ import annotations

import re
import unicodedata

# escape codes, other control characters, and those that hide or reorder text (Unicode TR 36, "Trojan Source"), look as
# blanks but are letters, or are seen by programs only (tags)
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_MARKS = "\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
_STACKED = re.compile(f"([{_MARKS}]{{4}})[{_MARKS}]+")  # they cover the lines above and below
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_LINE_ENDS = re.compile("[\n\t]")
_HALF_PAIR = re.compile("[\ud800-\udc7f\udd00-\udfff]")

MASK = "***"  # in place of a secret
_SECRET_NAME = (
    r"(?:password|passwd|secret|api[_-]?key|access[_-]?key|credentials"
    r"|(?:hf|hub|hugging[_-]?face|auth|access|bearer|api|wandb|github)[_-]?token)"
)
_ENDS_AS_SECRET = re.compile(rf"(?i){_SECRET_NAME}$")
# What is masked, each with the group to keep before the mask. Bounded, so that a long text takes linear time.
_SECRETS = (
    re.compile(r"(?<=://)()[^\s/?#'\"<>]{1,500}(?=@)"),  # user:password of a URL
    # the same of one that was taken for a path
    re.compile(r"(?i)\b((?:https?|ftps?|wss?|ssh|git|socks\w{0,2}):[/\\]{1,4})[^\s/\\?#'\"<>]{1,500}(?=@)"),
    re.compile(r"(?i)([?&][\w-]{0,40}(?:token|signature|sig|credential|password|secret|key)=)[^\s&'\"<>]+"),
    # As services hand them out: no underscores but digits or mixed case, unlike names of files and models.
    re.compile(r"\b((?:hf|api_org|gh[opsu]|sk)[_-])(?=[a-zA-Z]{0,99}\d|[A-Z]{0,99}[a-z]{1,99}[A-Z])[A-Za-z0-9]{30,}"),
    re.compile(r"\b(github_pat_|glpat-|sk-(?:ant|proj|or)-|wandb_v\d_)[\w-]{20,}"),
    re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"(?i)(\bbearer\s)[\w.~+/=-]{16,}"),
    re.compile(
        rf"(?i)({_SECRET_NAME}(?:['\"]?=['\"]?|['\"]\s{{0,9}}:\s{{0,9}}['\"]))[^\s'\",;&]+"
    ),  # NAME=value, "name": "value"
)


def printable(text: object, limit: int = 2000, *, lines: bool = False, mask: bool = True) -> str:
    """`text` with control characters as escapes such as \\x1b, of at most `limit` characters.

    Line ends and tabs stay only with `lines`, those of Windows as \\n; lone surrogates, which no terminal can write,
    become escapes, too. Passwords and access tokens are masked, unless `mask` is False: where a person is asked about
    the text itself.
    """
    shown = str(text)[: 2 * limit + 1000]
    shown = mask_secrets(shown) if mask else shown
    shown = shown.replace("\r\n", "\n") if lines else shown
    shown = shown if len(shown) <= limit else f"{shown[: limit - 1]}…"
    shown = visible(shown)
    if not lines:
        shown = _LINE_ENDS.sub(_escape, shown)
    return "".join(_escape_surrogate(character) for character in shown) if not shown.isascii() else shown


def visible(text: str) -> str:
    """`text` with escapes for control characters other than line ends and tabs, and for those that hide or reorder
    text: a name does not look as if it had another ending. Of marks on one letter four stay."""
    return text if text.isascii() and text.isprintable() else _STACKED.sub(r"\1…", _UNPRINTABLE.sub(_escape, text))


def encodable(text: str) -> str:
    """`text` with U+FFFD in place of lone surrogates, which JSON may hold and neither Tk nor a file takes.

    Those that stand for the bytes of a file name that is not UTF-8 (PEP 383) stay.
    """
    return _HALF_PAIR.sub("\ufffd", text)


def spreadsheet_cell(text: str) -> str:
    """`text` for a CSV table; what a spreadsheet would run as a formula begins with an apostrophe (OWASP's advice)."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def mask_secrets(text: str) -> str:
    """`text` with *** for passwords in URLs, access tokens, and what is assigned to a name such as `api_key`."""
    for pattern in _SECRETS:
        text = pattern.sub(rf"\g<1>{MASK}", text)
    return text


def is_secret_name(name: str) -> bool:
    """Whether a setting or variable of this name holds a password or an access token."""
    return _ENDS_AS_SECRET.search(name) is not None


def control_character(text: str, *, lines: bool = False) -> str:
    """The first control character in `text` as an escape, or ""; line ends and tabs are accepted with `lines`.

    These are the characters that a terminal, a shell or a file format takes for more than text, and lone surrogates,
    which no file can hold; those that only hide or reorder text belong to some languages.
    """
    found = (_CONTROL_BUT_LINES if lines else _CONTROL).search(text)
    return ascii(found.group())[1:-1] if found else ""


def _escape(found: re.Match[str]) -> str:
    return found.group().encode("unicode_escape").decode()


def _escape_surrogate(character: str) -> str:
    return ascii(character)[1:-1] if unicodedata.category(character) == "Cs" else character
