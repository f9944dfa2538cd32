"""Input controls drawn on plain canvases: faster than customtkinter's, and keyboard accessible.

`show` sets the value without calling the callback; user input calls it.
"""

from app.widgets.inputs.box import Box
from app.widgets.inputs.entry import Entry
from app.widgets.inputs.focus import handler
from app.widgets.inputs.menu import Menu
from app.widgets.inputs.slider import Slider
from app.widgets.inputs.switch import Switch
from app.widgets.inputs.text_box import TextBox

__all__ = ["Box", "Entry", "Menu", "Slider", "Switch", "TextBox", "handler"]
