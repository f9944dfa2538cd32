"""Places of settings in the window: faults are listed in the order of Tab."""

from __future__ import annotations

from typing import Any

from app.sections.places import in_order
from modules.config import Fault
from tests.app.driver import Driver


def test_the_order_is_that_of_tab(driver: Driver) -> None:
    driver.window.show_section("training")
    driver.settle()
    section = driver.window.sections["training"]
    shown = {id(field): field.path for block in section.blocks for field in block.visible_fields()}
    walked = list[str]()
    widget: Any = section.blocks[0].frame
    for _ in range(300):
        widget = widget.tk_focusNext()
        field = section.holding(widget)
        if field is not None and shown[id(field)] not in walked:
            walked.append(shown[id(field)])
    assert len(walked) > 20
    assert [fault.path for fault in in_order(Fault(path, "") for path in sorted(walked))] == walked
