"""What is drawn can be read: contrast of the colours, and icons that are not empty."""

from __future__ import annotations

import pytest

from app import icons, look

READABLE = 4.5  # WCAG 2.2, level AA, for text of this size
GROUNDS = (look.WINDOW, look.SIDEBAR, look.CARD)
INKS = (look.TEXT, look.MUTED, look.ACCENT_TEXT, look.BAD, look.WARN, look.GOOD)
PAIRS = [
    *((ink, ground) for ink in INKS for ground in GROUNDS),
    (look.TEXT, look.FIELD),
    (look.TEXT, look.HOVER),
    (look.TEXT, look.PRESSED),
    (look.TEXT, look.CHOSEN),
    (look.TEXT, look.ACCENT_SOFT),
    (look.MUTED, look.ACCENT_SOFT),
    (look.ACCENT_TEXT, look.ACCENT_SOFT),
    (look.BAD, look.BAD_SOFT),
    (look.WARN, look.WARN_SOFT),
    (look.ON_TOOLTIP, look.TOOLTIP),
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
def test_words_can_be_read(pair: tuple[look.Colour, look.Colour], mode: int) -> None:
    ink, ground = pair
    assert contrast(ink[mode], ground[mode]) >= READABLE


@pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
def test_buttons_can_be_read_and_fields_be_seen(mode: int) -> None:
    for ground in (look.ACCENT, look.ACCENT_HOVER):
        assert contrast(look.ON_ACCENT[mode], ground[mode]) >= READABLE
    assert contrast(look.ACCENT[mode], look.CARD[mode]) >= 3  # the ring of what has the focus
    assert contrast(look.FIELD_LINE[mode], look.FIELD[mode]) >= 1.5


@pytest.mark.parametrize("name", sorted(set(icons.ICONS) - {"blank"}))
def test_every_icon_draws_something(name: str) -> None:
    picture = icons._drawn(name, 18, "#ffffff")
    assert picture.size == (18, 18)
    assert picture.getchannel("A").getextrema()[1] > 150
