from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from privet.data import load
from privet.errors import InputError


def picture(path: Path, mode: str = "L", colour: object = 7, size: tuple[int, int] = (5, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, colour).save(path)  # type: ignore[arg-type]


def test_grey_images_by_class(tmp_path: Path) -> None:
    picture(tmp_path / "dog" / "1.png", colour=10)
    picture(tmp_path / "cat" / "2.png", colour=20)
    picture(tmp_path / "cat" / "1.bmp", colour=30)
    picture(tmp_path / "dog" / ".hidden" / "x.png")
    dataset = load(f"folder:{tmp_path}")
    assert dataset.classes == ("cat", "dog")
    assert dataset.shape == (1, 4, 5)
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert dataset.train.inputs[:, 0, 0].tolist() == [30, 20, 10]


def test_colour_comes_channels_first_and_grey_joins_it(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a" / "1.png", "RGB", (1, 2, 3))
    picture(tmp_path / "train" / "b" / "1.png", "L", 9)
    picture(tmp_path / "test" / "b" / "1.png", "RGBA", (4, 5, 6, 7))
    dataset = load(f"folder:{tmp_path}")
    assert dataset.shape == (3, 4, 5)
    assert dataset.train.inputs[:, :, 3, 4].tolist() == [[1, 2, 3], [9, 9, 9]]
    assert dataset.test.inputs[0, :, 0, 0].tolist() == [4, 5, 6]
    assert dataset.test.labels.tolist() == [1]


def test_refuses_a_class_that_only_the_test_images_have(tmp_path: Path) -> None:
    picture(tmp_path / "train" / "a" / "1.png")
    picture(tmp_path / "test" / "b" / "1.png")
    with pytest.raises(InputError, match=r"class folder 1 .in the order of names. is not among the training images"):
        load(f"folder:{tmp_path}")


def test_refuses_pixels_of_sixteen_bits(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    Image.fromarray(np.zeros((4, 4), dtype=np.uint16)).save(tmp_path / "a" / "1.png")
    with pytest.raises(InputError, match="not have eight bits"):
        load(f"folder:{tmp_path}")


def test_refuses_a_picture_too_large_to_be_honest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture(tmp_path / "a" / "1.png", size=(100, 100))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9000)
    with pytest.raises(InputError, match="is not an image that can be read"):
        load(f"folder:{tmp_path}")
