"""Work in steps between the events of the window."""

from __future__ import annotations

import tkinter as tk
from collections.abc import Iterator

import pytest

from app.form.cards import FieldCard
from app.sections.form_section import FIRST_CARDS
from app.slices import Slices, each
from app.widgets import theme
from app.widgets.own_events import bind_own
from app.windows.dialog import Dialog
from tests.app.driver import Driver


@pytest.fixture
def root(display: str) -> Iterator[tk.Tk]:
    root = tk.Tk()
    root.update()
    yield root
    for job in root.tk.splitlist(root.tk.call("after", "info")):
        root.after_cancel(job)
    root.destroy()


def test_newest_steps_come_first_and_the_window_answers_between_them(root: tk.Tk) -> None:
    slices, done = Slices(root), list[str]()
    root.bind("<<Asked>>", lambda event: done.append("answer"))

    def steps(name: str) -> Iterator[None]:
        for number in range(2):
            done.append(f"{name}{number}")
            root.event_generate("<<Asked>>", when="tail")
            yield

    slices.soon(steps("earlier"))
    slices.soon(steps("later"))
    while slices.is_busy:
        root.update()
    assert done == ["later0", "answer", "later1", "answer", "earlier0", "answer", "earlier1", "answer"]


def test_steps_of_destroyed_widgets_are_dropped_and_bugs_reported(root: tk.Tk) -> None:
    slices, reported = Slices(root), list[str]()
    root.report_callback_exception = lambda kind, error, trace: reported.append(str(error))
    gone, other = tk.Label(root), tk.Label(root)
    gone.destroy()
    slices.soon(each([other], lambda label: label.configure(text="after the bug")))  # type: ignore[call-arg]
    slices.soon(each([gone], lambda label: label.configure(bg="red")))  # type: ignore[call-arg]
    slices.soon(each([other], lambda label: label.configure(bg="no colour")))  # type: ignore[call-arg]
    while slices.is_busy:
        root.update()
    assert reported == ['unknown color name "no colour"']
    assert other.cget("text") == "after the bug"


def test_events_of_widgets_inside_are_not_those_of_the_window(root: tk.Tk) -> None:
    seen: list[str] = []
    for sequence in ("<Configure>", "<Destroy>"):
        bind_own(root, sequence, lambda sequence=sequence: seen.append(sequence))  # type: ignore[misc]
    label = tk.Label(root, text="inside")
    label.pack()
    root.update()
    assert set(seen) == {"<Configure>"}
    seen.clear()
    label.configure(text="inside, and longer")
    label.destroy()
    root.geometry("300x200")
    while root.winfo_width() != 300:
        root.update()
    assert set(seen) == {"<Configure>"}


@pytest.mark.slow
def test_first_cards_appear_at_once_and_a_jump_waits_for_the_others(driver: Driver) -> None:
    def filled() -> list[FieldCard]:
        return [block for block in section.blocks if block.fields]

    driver.window.show_section("training")
    section = driver.window.sections["training"]
    assert [block.heading.cget("text") for block in filled()] == ["Length", "Optimization"]
    assert len(filled()) == FIRST_CARDS < len(section.blocks)
    driver.window.state_.jump_to("early_stopping_patience")
    assert len(filled()) == FIRST_CARDS, "nothing is built for the jump alone"
    driver.settle()
    assert filled() == section.blocks
    assert section.holding(driver.window.focus_get()).path == "early_stopping_patience"

    driver.window.show_section("output")
    driver.window.state_.jump_to("rescue_dir")
    driver.window.show_section("data")  # left before the jump
    driver.settle()
    driver.window.show_section("output")
    driver.settle()
    assert section.find("rescue_dir") is None
    assert driver.window.sections["output"].holding(driver.window.focus_get()) is None


def test_scale_and_colours_change_in_sight_first(driver: Driver) -> None:
    for name in ("sampling", "output", "tools"):
        driver.window.show_section(name)
    driver.settle()
    before = dict(driver.window.sections)
    driver.window.set_mode("light")
    colours = {name: section.cget("bg") for name, section in before.items()}
    assert colours.pop("tools") == theme.WINDOW[0]
    assert set(colours.values()) == {theme.WINDOW[1]}
    driver.settle()
    assert {section.cget("bg") for section in before.values()} == {theme.WINDOW[0]}

    opening = tk.Toplevel(driver.window)
    driver.window.set_scale(110)
    assert opening.winfo_exists(), "a dialog that waits until it is visible"
    opening.destroy()
    Dialog(driver.window, "Preflight check", modal=False).show()
    driver.window.set_scale(110)
    assert driver.window.preferences.scale == 100, "what runs in an open dialog is not lost"
    assert "Close “Preflight check” first" in " ".join(driver.text(driver.window.run_bar).split())
    driver.press("Escape")
    driver.window.set_scale(110)
    assert list(driver.window.sections) == ["tools"]
    assert [name for name, section in before.items() if not section.winfo_exists()] == ["tools"]
    driver.settle()
    assert not any(section.winfo_exists() for section in before.values())
    assert {child for child in driver.window.children.values() if not child.winfo_exists()} == set()
