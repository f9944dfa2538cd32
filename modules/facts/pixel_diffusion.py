"""See modules/families/pixel_diffusion.py."""

from modules.facts import FamilyFacts

FACTS = FamilyFacts(
    about="Pixel diffusion: a small U-Net on pixels, trained from scratch, the demo; no base model is needed.",
    resolution=64,
)
