"""The caption that a sample is trained with: which of its image's, of `{a|b}` which words, and which tags in what
order."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, zip_longest

from modules.config import Concept
from modules.config.choices import with_choices
from modules.data.rng import SampleRng


def plain_caption(caption: str, concept: Concept) -> str:
    """A caption without chance, as it is cached and validated with: the first of each choice, all tags in order."""
    if concept.wildcards:
        caption = with_choices(caption, lambda choices: choices[0])
    return concept.prompt_prefix + _kept_tags(caption, concept)[0]


def augment_caption(captions: tuple[str, ...], concept: Concept, dropout: float, rng: SampleRng) -> str:
    """Choose one caption; drop it ("") with the concept's `caption_dropout`, else `dropout`; or make the choices in it,
    shuffle and drop its tags and add the prefix.

    The random numbers are taken in a fixed order.
    """
    chosen = captions[rng.integer(len(captions))]
    if rng.uniform() < (dropout if concept.caption_dropout is None else concept.caption_dropout):
        return ""
    if concept.wildcards:
        chosen = with_choices(chosen, lambda choices: choices[rng.integer(len(choices))])
    chosen, first, last = _kept_tags(chosen, concept)
    if concept.tag_shuffle or concept.tag_dropout > 0:
        chosen = _augment_tags(chosen, first, last, concept, rng)
    return concept.prompt_prefix + chosen


def _kept_tags(caption: str, concept: Concept) -> tuple[str, int, int]:
    """The caption without `keep_separator`, and how many tags at its start and end keep their place."""
    separator, delimiter = concept.keep_separator, concept.tag_delimiter
    if not separator or separator not in caption:
        return caption, concept.keep_tags, 0
    parts = [_taken_apart(part, delimiter) for part in caption.split(separator)]
    usual = delimiter if delimiter[-1].isspace() else f"{delimiter} "
    between = min((each for _, used in parts for each in used), key=len, default=usual)
    texts = (_put_together(*part) for part in parts)
    return between.join(filter(None, texts)), len(parts[0][0]), sum(len(tags) for tags, _ in parts[2:])


def tags_of(text: str, delimiter: str) -> list[str]:
    """The tags of a caption or a list; several delimiters in a row are one, and there are no empty tags."""
    return _taken_apart(text, delimiter)[0]


def _taken_apart(caption: str, delimiter: str) -> tuple[list[str], list[str]]:
    """The tags, and what is between each two. A delimiter's own spaces may be the ends of the caption."""
    pieces = re.split(rf"((?:\s*{re.escape(delimiter)})+\s*)", f" {caption.strip()} ")
    tags, between = [tag.strip() for tag in pieces[::2]], pieces[1::2]
    start, end = int(not tags[0]), len(tags) - int(not tags[-1])
    return tags[start:end], between[start : end - 1]


def _put_together(tags: Sequence[str], between: Sequence[str]) -> str:
    """The tags with the first of what is `between`."""
    return "".join(chain.from_iterable(zip_longest(tags, between[: max(0, len(tags) - 1)], fillvalue="")))


def _augment_tags(caption: str, first: int, last: int, concept: Concept, rng: SampleRng) -> str:
    """The caption with its tags shuffled and dropped, but for so many at its start and end."""
    tags, between = _taken_apart(caption, concept.tag_delimiter)
    end = max(first, len(tags) - last)
    others = tags[first:end]
    if concept.tag_shuffle:
        others = [others[n] for n in rng.permutation(len(others))]
    if concept.tag_dropout > 0:
        others = [tag for tag in others if rng.uniform() >= concept.tag_dropout or not _may_drop(tag, concept)]
    return _put_together(tags[:first] + others + tags[end:], between)


def _may_drop(tag: str, concept: Concept) -> bool:
    only = _listed(concept.dropped_tags, concept)
    return tag.lower() not in _listed(concept.kept_tags, concept) and (not only or tag.lower() in only)


def _listed(tags: str, concept: Concept) -> set[str]:
    return set(tags_of(tags.lower(), concept.tag_delimiter.lower()))
