"""Contrast of the colours, and icons that are not empty."""

from __future__ import annotations

import pytest

from app.widgets import icons, theme

READABLE = 4.5  # WCAG 2.2, level AA, for text of this size
PERCEPTIBLE = 3.0  # the same, for the borders and marks of controls
GROUNDS = (theme.WINDOW, theme.SIDEBAR, theme.CARD)
INKS = (theme.TEXT, theme.MUTED, theme.ACCENT_TEXT, theme.BAD, theme.WARN, theme.GOOD)
PAIRS = [
    *((ink, ground) for ink in INKS for ground in GROUNDS),
    (theme.TEXT, theme.FIELD),
    (theme.TEXT, theme.HOVER),
    (theme.TEXT, theme.PRESSED),
    (theme.TEXT, theme.SELECTED),
    (theme.TEXT, theme.ACCENT_SOFT),
    (theme.MUTED, theme.ACCENT_SOFT),
    (theme.ACCENT_TEXT, theme.ACCENT_SOFT),
    (theme.BAD, theme.BAD_SOFT),
    (theme.WARN, theme.WARN_SOFT),
    (theme.ON_TOOLTIP, theme.TOOLTIP),
    *((theme.FAINT, ground) for ground in (theme.WINDOW, theme.CARD, theme.FIELD)),
]


def luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0][0]} on {pair[1][0]}")
def test_text_has_contrast(pair: tuple[theme.Colour, theme.Colour], mode: int) -> None:
    ink, ground = pair
    assert contrast(ink[mode], ground[mode]) >= READABLE


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_buttons_and_field_borders_have_contrast(mode: int) -> None:
    for ground in (theme.ACCENT, theme.ACCENT_HOVER):
        assert contrast(theme.ON_ACCENT[mode], ground[mode]) >= READABLE
    assert contrast(theme.ACCENT[mode], theme.CARD[mode]) >= PERCEPTIBLE  # the focus ring
    for line in (theme.FIELD_LINE, theme.SWITCH_OFF):  # WCAG 2.2, 1.4.11: what marks a control
        for ground in (theme.CARD, theme.WINDOW, theme.FIELD):
            assert contrast(line[mode], ground[mode]) >= PERCEPTIBLE
    assert contrast(theme.KNOB[mode], theme.SWITCH_OFF[mode]) >= PERCEPTIBLE


@pytest.mark.parametrize("name", sorted(set(icons.ICONS) - {"blank"}))
def test_every_icon_draws_something(name: str) -> None:
    image = icons._drawn(name, 18, "#ffffff")
    assert image.size == (18, 18)
    assert image.getchannel("A").getextrema()[1] > 150
