"""Every built-in family says what the window shows of it, and its file says what the class does."""

from __future__ import annotations

from modules.config.family_about import family_about
from modules.facts import family_names
from modules.families._by_name import family_class
from modules.families._flow_transformer import FlowTransformer
from modules.families._latent_diffusion import LatentDiffusion


def test_each_family_has_a_name_for_people_and_size_or_text() -> None:
    for name in family_names():
        about = family_about(name)
        assert about.title not in ("", name)
        assert about.text or (about.size and about.weights and about.licence and about.maker is not None), name
        kind = family_class(name)
        network = "transformer" if issubclass(kind, FlowTransformer) else "unet"
        assert about.network == (network if issubclass(kind, (FlowTransformer, LatentDiffusion)) else "other")


def test_parts_of_one_with_several_sizes() -> None:
    about = family_about("stable_diffusion_3")
    assert (about.maker, about.weights, about.licence) == ("Stability AI", "4 to 16 GB", "Stability community licence")
    assert "32 to 128 GB" in about.memory
    assert about.least_memory == "LoRA 4+ GB, full 32+ GB"
    assert family_about("my_file.py").title == "my_file.py"
