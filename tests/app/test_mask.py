"""Masks that are painted in the window."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageChops

from app.images.mask import LEFT_OUT, TRAINED, Mask, open_mask
from app.sections.data import Section
from modules.files import FileFault
from modules.files.images import small_alpha
from tests.app.driver import Driver, everything


def test_strokes_and_undo(tmp_path: Path) -> None:
    mask = Mask(Image.new("L", (64, 32)))
    mask.begin()
    mask.stroke((10, 10), (50, 10), 4, TRAINED)
    assert [mask.pixels.getpixel(at) for at in ((10, 10), (30, 13), (30, 16), (60, 10))] == [255, 255, 0, 0]
    mask.invert()
    mask.fill(TRAINED)
    assert mask.pixels.getextrema() == (TRAINED, TRAINED)
    mask.undo()
    mask.undo()
    assert mask.pixels.getpixel((30, 13)) == TRAINED
    assert mask.pixels.getpixel((60, 30)) == LEFT_OUT
    mask.undo()
    assert mask.pixels.getextrema() == (LEFT_OUT, LEFT_OUT)
    assert not mask.can_undo


def test_a_mask_is_written_at_the_size_of_the_upright_image(tmp_path: Path) -> None:
    image, file = tmp_path / "cat.jpg", tmp_path / "cat-masklabel.png"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    Image.new("RGB", (48, 32), "red").save(image, exif=exif)
    shown, mask = open_mask(image, file)
    assert shown.size == mask.pixels.size == (32, 48)
    mask.fill(TRAINED)
    mask.save(file)
    Image.new("L", (16, 24), 90).save(tmp_path / "other.png")
    assert open_mask(image, file)[1].pixels.getextrema() == (TRAINED, TRAINED)
    assert open_mask(image, tmp_path / "other.png")[1].pixels.size == (32, 48)
    with pytest.raises(FileFault, match=r"ends in '.gif'; masks are written as .png, .bmp"):
        mask.save(tmp_path / "cat-mask.gif")
    file.write_bytes(b"\x89PNG\r\n\x1a\nno image")
    with pytest.raises((OSError, FileFault)):
        open_mask(image, file)


@pytest.mark.parametrize("ending", [".png", ".bmp", ".jpg", ".webp", ".tiff"])
def test_what_is_painted_is_what_is_read(tmp_path: Path, ending: str) -> None:
    image, file = tmp_path / "cat.png", tmp_path / f"cat-mask{ending}"
    Image.new("RGB", (96, 64)).save(image)
    mask = Mask(Image.new("L", (96, 64)))
    mask.stroke((20, 20), (70, 50), 9, TRAINED)
    mask.save(file)
    read = open_mask(image, file)[1].pixels
    off = ImageChops.difference(read, mask.pixels).histogram()
    assert sum(off[4 if ending == ".jpg" else 1 :]) == 0


def test_a_mask_that_its_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "cat-mask.webp"
    file.write_bytes(b"former")
    with pytest.raises(FileFault, match="cannot hold 16400 × 1 pixels as WEBP"):
        Mask(Image.new("L", (16400, 1))).save(file)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"former"]


def test_painting_begins_with_the_transparency_of_an_image_that_is_its_mask(tmp_path: Path) -> None:
    image = tmp_path / "cat.png"
    Image.new("RGBA", (64, 32), (255, 0, 0, 77)).save(image)
    assert open_mask(image, image)[1].pixels.getextrema() == (77, 77)
    assert small_alpha(image, 16).getextrema() == (77, 77)


@pytest.mark.slow
def test_painting_over_an_image(shared_driver: Driver, shared_home: Path) -> None:
    driver, place = shared_driver, shared_home / "to be masked"
    place.mkdir()
    Image.new("RGB", (200, 100), "red").save(place / "cat.png")
    driver.draft.new()
    driver.draft.insert("concepts", 0, {"path": str(place)})
    section = driver.go_to("data")
    assert isinstance(section, Section)
    section.turn_to("images")
    pages = section.pages
    assert pages is not None
    driver.wait(lambda: pages.image_index.images and pages.is_complete, "the folder is read")
    assert pages.browser.open(place / "cat.png")
    button = pages.browser.editor.mask_button
    assert not button.winfo_manager(), "no mask is used"
    driver.draft.set("masked_training", True)
    pages._paint_mask(pages.image_index.images[0])
    assert driver.dialogs() == []
    assert "still being read" in driver.text(pages), "a mask elsewhere is not known yet"
    pages.reload_if_changed()
    driver.wait(lambda: pages.is_complete and button.winfo_ismapped(), "the button")

    def canvas() -> Any:
        (dialog,) = driver.dialogs()
        driver.wait(lambda: "200 × 100 pixels" in driver.text(dialog), "the image is read")
        driver.settle()
        return next(each for each in everything(dialog) if str(each.cget("cursor")) == "crosshair")

    def drag(number: int) -> None:
        drawn, middle = canvas(), canvas().winfo_reqheight() // 2
        drawn.event_generate(f"<Button-{number}>", x=drawn.winfo_reqwidth() // 2, y=middle)
        drawn.event_generate(f"<B{number}-Motion>", x=drawn.winfo_reqwidth() * 3 // 4, y=middle)
        driver.settle()

    def is_ready(label: str) -> bool:
        (dialog,) = driver.dialogs()
        button = next(each for each in everything(dialog) if hasattr(each, "invoke") and each.cget("text") == label)
        return bool(button.cget("state") == "normal")

    driver.click_really(button)
    canvas()
    driver.press("ctrl+z")
    assert not is_ready("Save"), "there was nothing to undo"
    drag(1)
    assert is_ready("Save")
    driver.press("ctrl+z")
    canvas().event_generate("<B1-Motion>", x=1, y=1)
    driver.settle()
    assert not is_ready("Undo"), "what goes on of a stroke that was undone is no stroke"
    drag(1)
    driver.press("Escape")
    (dialog,) = driver.dialogs()
    assert "has changes that are not saved" in driver.text(dialog)
    driver.press("Return")
    assert "has changes that are not saved" not in driver.text(dialog), "painting goes on"
    driver.answer("Save")
    file = place / "cat-masklabel.png"
    with Image.open(file) as written:
        assert (written.size, written.mode) == ((200, 100), "L")
        assert [written.getpixel(at) for at in ((125, 50), (20, 50), (125, 5))] == [TRAINED, LEFT_OUT, LEFT_OUT]
    driver.wait(lambda: pages.is_complete and pages.image_index.images[0].mask == file, "the mask is found")
    driver.wait(lambda: len(pages.browser.editor._canvas.find_withtag("picture")) == 2, "the image and its mask")
    driver.click_really(button)
    drag(3)
    driver.answer("Save")
    with Image.open(file) as written:
        assert written.getextrema() == (LEFT_OUT, LEFT_OUT), "the right button takes away"
    driver.click_really(button)
    canvas()
    driver.answer("Remove the mask")
    assert not file.exists()
    driver.wait(lambda: pages.is_complete and pages.image_index.images[0].mask is None, "the mask is gone")
