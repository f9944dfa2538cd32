"""The caption of one sample: one of the image's captions, augmented as the concept says, as a function of the seed."""

from __future__ import annotations

from modules.config import Concept
from modules.data.rng import SampleRng


def augment_caption(captions: tuple[str, ...], concept: Concept, dropout: float, rng: SampleRng) -> str:
    """Choose one caption; drop it ("") with probability `dropout`, else shuffle and drop its tags and add the prefix.

    The random numbers are taken in a fixed order.
    """
    chosen = captions[rng.integer(len(captions))]
    if rng.uniform() < dropout:
        return ""
    if concept.tag_shuffle or concept.tag_dropout > 0:
        chosen = _augment_tags(chosen, concept, rng)
    return concept.prompt_prefix + chosen


def _augment_tags(caption: str, concept: Concept, rng: SampleRng) -> str:
    tags = [tag.strip() for tag in caption.split(concept.tag_delimiter)]
    kept, others = tags[: concept.keep_tags], tags[concept.keep_tags :]
    if concept.tag_shuffle:
        others = [others[n] for n in rng.permutation(len(others))]
    if concept.tag_dropout > 0:
        others = [tag for tag in others if rng.uniform() >= concept.tag_dropout]
    space = " " if concept.tag_delimiter == "," else ""
    return (concept.tag_delimiter + space).join(kept + others)
