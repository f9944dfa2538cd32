"""The first start."""

from __future__ import annotations

from typing import Final

WELCOME_TITLE: Final = "Welcome to Tandem"
WELCOME_TEXT: Final = "Train image models on one GPU, on all of them, or on several machines. How do you want to begin?"
WELCOME_DEMO: Final = "Try the demo"
WELCOME_DEMO_HELP: Final = "Draws 200 small pictures and trains on them for about a minute, also without a GPU."
WELCOME_PRESET: Final = "Open a preset"
WELCOME_PRESET_HELP: Final = "Ready settings to begin from; change what you like."
WELCOME_OWN: Final = "Begin with empty settings"
WELCOME_OWN_HELP: Final = "Choose a model, add your pictures, train."
WELCOME_DRAWING: Final = "Drawing the demo's pictures …"
WELCOME_NOT_DRAWN: Final = "The demo's pictures cannot be drawn."
WELCOME_LATER: Final = "F1 lists the keyboard shortcuts."
