"""The training method that comes with another model family."""

from __future__ import annotations

from app.form.setting_text import choice_title
from app.state import AppState
from modules.config.family_about import FamilyAbout, family_about


def choose_family(state: AppState, name: str) -> None:
    """Choose a family, and with it the method that people expect; says so in the run bar if it is another one."""
    draft, about = state.draft, family_about(name)
    if name == draft.get("family"):
        return
    before = str(draft.get("method"))
    method = method_for(about, before)
    draft.set_together({"family": name, "method": method})
    if method != before:
        memory = f" ({about.least_memory})" if about.least_memory else ""
        now, then = choice_title("method", method), choice_title("method", before)
        state.say(f"Training method: {now}, not {then}{memory}. Ctrl+Z undoes both.")


def method_for(about: FamilyAbout, method: str) -> str:
    """The method for a family that is chosen now: LoRA for a large model, all weights for one without a base model.

    Only U-Nets learn an embedding. A family in a file of the user keeps the method.
    """
    if about.weights_gb is None:
        return "fine_tune" if about.text else method
    return method if method == "embedding" and about.network == "unet" else "lora"
