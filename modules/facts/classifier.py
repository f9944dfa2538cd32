"""See modules/families/classifier.py."""

from modules.facts import FamilyFacts

FACTS = FamilyFacts(
    about="Image classifier: says which class an image shows; trained from scratch or from a saved classifier.",
    resolution=224,
    draws_samples=False,
    learns_classes=True,
)
