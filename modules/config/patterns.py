"""Settings that give numbers to what regular expressions match: PATTERN = NUMBER, separated by commas."""

from __future__ import annotations

import re
from typing import Final

_SEPARATOR: Final = re.compile(r",(?![^{]*\})|\n")  # a comma within {1,2} belongs to its pattern


def parse_number_patterns(
    text: str, word: str, example: str, most: float, *, whole: bool = False
) -> list[tuple[str, float]]:
    """The patterns and their numbers, which are above 0 and at most `most`.

    `word` is what messages call the number, `example` an entry. Raises ValueError with the rest of a sentence.
    """
    found = []
    for part in filter(None, (each.strip() for each in _SEPARATOR.split(text))):
        pattern, is_given, given = (each.strip() for each in part.rpartition("="))
        try:
            number = float(given)
            re.compile(pattern)
        except ValueError:
            raise ValueError(f"in which {part!r} is no PATTERN = {word}, such as {example}") from None
        except re.error as error:
            raise ValueError(f"in which {pattern!r} is not a valid regular expression ({error})") from None
        if not is_given or not pattern or not 0 < number <= most or (whole and not number.is_integer()):
            kind = "a whole number" if whole else f"a {word.lower()}"
            raise ValueError(f"in which {part!r} is no PATTERN = {word} with {kind} above 0 and up to {most:g}")
        found.append((pattern, number))
    return found
