"""Samples of families of images."""

from __future__ import annotations

from PIL import Image

from modules.families._family import Family, SampleRequest


def still(family: Family, request: SampleRequest) -> Image.Image:
    """The sample of a request for one frame."""
    sample = family.sample(request)
    assert isinstance(sample, Image.Image)
    return sample
