"""Captions, tags and masks that models propose, and that a person reviews: kept, written beside the images, undone.

Nothing here needs torch; modules/annotators runs the models.
"""

from modules.annotation.apply import apply_proposals, undo_proposals
from modules.annotation.messages import MOST_CHARACTERS, Message
from modules.annotation.models import DEFAULT_MODELS, KNOWN_MODELS, model_name
from modules.annotation.proposals import (
    DEFAULT_FOLDER,
    Header,
    Mode,
    Proposal,
    ProposalSet,
    Task,
    check_ending,
    clean_text,
    proposal_sets,
)

__all__ = [
    "DEFAULT_FOLDER",
    "DEFAULT_MODELS",
    "KNOWN_MODELS",
    "MOST_CHARACTERS",
    "Header",
    "Message",
    "Mode",
    "Proposal",
    "ProposalSet",
    "Task",
    "apply_proposals",
    "check_ending",
    "clean_text",
    "model_name",
    "proposal_sets",
    "undo_proposals",
]
