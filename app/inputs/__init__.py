"""Controls that hold a value, drawn on plain canvases: quicker than customtkinter's, and all in the focus order.

`show` puts a value in without telling anybody; what people do is told by the callback.
"""

from app.inputs.box import Box
from app.inputs.entry import Entry
from app.inputs.focus import take_focus, then
from app.inputs.menu import Menu
from app.inputs.slider import Slider
from app.inputs.switch import Switch
from app.inputs.text_box import TextBox

__all__ = ["Box", "Entry", "Menu", "Slider", "Switch", "TextBox", "take_focus", "then"]
