"""Asking a model about each image, and keeping what it proposes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from PIL import Image

from modules.annotation import MOST_CHARACTERS, Proposal, ProposalSet, clean_text
from modules.annotation.combine import png
from modules.annotators.annotator import Annotator
from modules.annotators.select import FoundImage, read_image
from modules.config import TandemError
from modules.diffusion.library_errors import first_line
from modules.files import FileFault, open_for_writing, printable, replacing


@dataclass(frozen=True)
class Wording:
    """What is put before and after each proposed text."""

    prefix: str = ""
    suffix: str = ""

    def of(self, text: str) -> str:
        """The text as it is proposed; empty if there is none."""
        return clean_text(f"{self.prefix}{text}{self.suffix}") if text.strip() else ""


def images_left(proposals: ProposalSet, images: Sequence[FoundImage]) -> list[FoundImage]:
    """The images without a proposal, with a failed one, or that have changed since. Raises ConfigError."""
    known = proposals.read()
    return [image for image in images if not _is_done(known.get(image.relative), image)]


def propose(
    proposals: ProposalSet,
    images: Sequence[FoundImage],
    annotate: Annotator,
    wording: Wording,
    batch_size: int,
    report: Callable[[Proposal], object],
) -> None:
    """Ask about the images, `batch_size` at a time; each proposal is on disk before it is reported.

    The set must be locked. Raises TandemError if memory does not suffice for one image, or OSError.
    """
    for first in range(0, len(images), batch_size):
        batch = list[tuple[FoundImage, Image.Image]]()
        for image in images[first : first + batch_size]:
            try:
                batch.append((image, read_image(image.path, annotate.longest)))
            except FileFault as fault:
                _keep(proposals, _proposal(image, error=str(fault)), report)
        results = _annotated(annotate, [pixels for _, pixels in batch])
        for (image, _), result in zip(batch, results, strict=True):
            _keep(proposals, _made(proposals, image, result, wording), report)


def _is_done(proposal: Proposal | None, image: FoundImage) -> bool:
    if proposal is None or proposal.error is not None:
        return False
    return (proposal.bytes, proposal.mtime_ns) == (image.bytes, image.mtime_ns)


def _annotated(annotate: Annotator, images: Sequence[Image.Image]) -> list[str | Image.Image | FileFault]:
    """What the model makes of the images, fewer at a time if they are too many or one of them makes it fail."""
    if not images:
        return []
    try:
        made: list[str | Image.Image | FileFault] = list(annotate(images))
        if len(made) != len(images):
            raise ValueError(f"{len(made)} results for {len(images)} images")
        return made
    except torch.OutOfMemoryError as error:
        if len(images) == 1:
            raise TandemError(
                "One image needs more memory than the device has.", "Use --precision bf16, or --device cpu."
            ) from error
        torch.cuda.empty_cache()
    except TandemError:  # that says that no other image would be better
        raise
    except Exception as error:  # noqa: BLE001 - of a library, whatever it is
        if len(images) == 1:
            return [FileFault(f"the model fails at this image ({printable(first_line(error), 300)})")]
    half = len(images) // 2
    return [*_annotated(annotate, images[:half]), *_annotated(annotate, images[half:])]


def _made(
    proposals: ProposalSet, image: FoundImage, result: str | Image.Image | FileFault, wording: Wording
) -> Proposal:
    if isinstance(result, FileFault):
        return _proposal(image, error=str(result))
    if isinstance(result, str):
        text = wording.of(result)[:MOST_CHARACTERS]
        return _proposal(image, text=text) if text else _proposal(image, error="the model has found nothing to say")
    name = hashlib.sha256(image.relative.encode("utf-8", "surrogateescape")).hexdigest()[:24] + ".png"
    made = _proposal(image, mask=name)
    with replacing(proposals.mask_file(made)) as partial, os.fdopen(open_for_writing(partial), "wb") as output:
        output.write(png(result))
    return made


def _proposal(
    image: FoundImage, *, text: str | None = None, mask: str | None = None, error: str | None = None
) -> Proposal:
    return Proposal(image=image.relative, text=text, mask=mask, error=error, bytes=image.bytes, mtime_ns=image.mtime_ns)


def _keep(proposals: ProposalSet, proposal: Proposal, report: Callable[[Proposal], object]) -> None:
    proposals.add(proposal)
    report(proposal)
