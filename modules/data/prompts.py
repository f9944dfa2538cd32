"""The caption of one sample: one of the picture's captions, varied as its concept asks, a pure function of
the seed."""

from __future__ import annotations

from modules.config import Concept
from modules.data.hashing import Draws


def draw_caption(captions: tuple[str, ...], concept: Concept, dropout: float, draws: Draws) -> str:
    """Choose, drop or vary a caption; "" where it is dropped. The draws come in a fixed order."""
    chosen = captions[draws.below(len(captions))]
    if draws.fraction() < dropout:
        return ""
    if concept.tag_shuffle or concept.tag_dropout > 0:
        chosen = _vary_tags(chosen, concept, draws)
    return concept.prompt_prefix + chosen


def _vary_tags(caption: str, concept: Concept, draws: Draws) -> str:
    tags = [tag.strip() for tag in caption.split(concept.tag_delimiter)]
    kept, others = tags[: concept.keep_tags], tags[concept.keep_tags :]
    if concept.tag_shuffle:
        others = [others[place] for place in draws.order(len(others))]
    if concept.tag_dropout > 0:
        others = [tag for tag in others if draws.fraction() >= concept.tag_dropout]
    space = " " if concept.tag_delimiter == "," else ""
    return (concept.tag_delimiter + space).join(kept + others)
