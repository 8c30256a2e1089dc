"""The user's own images: folders and npz files."""

import os

import numpy as np
import pytest
import torch
from helpers.images import draw_folder
from PIL import Image

from ressmooth.errors import DataError
from ressmooth.training.datasets import load
from ressmooth.training.decoded import SUFFIXES


def colours(images):
    """Return the most frequent value of the first channel of each image."""
    return [int(x.flatten().mode().values) for x in images.pixels[..., 0]]


def test_a_folder_of_classes_is_split_the_same_way_every_time(tmp_path):
    source = draw_folder(tmp_path / "shapes", {"circle": 10, "square": 20, "cross": 5})
    dataset = load(f"images:{source}", tmp_path / "data")
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (28, 7, 3)
    assert dataset.train.image == (12, 12, 3)
    # classes are numbered in the order of their names: circle 0, cross 1, square 2
    assert torch.bincount(dataset.test.labels).tolist() == [2, 1, 4]
    load.cache_clear()
    again = load(f"images:{source}", tmp_path / "other")
    assert torch.equal(again.test.pixels, dataset.test.pixels)
    assert again.sha256 == dataset.sha256


@pytest.mark.parametrize("test", ["test", "val"])
def test_a_folder_with_parts_is_not_split(tmp_path, test):
    draw_folder(tmp_path / "set" / "train", {"a": 6, "b": 4})
    draw_folder(tmp_path / "set" / test, {"a": 1, "b": 2})
    dataset = load(f"images:{tmp_path}/set", tmp_path / "data")
    assert dataset.train.labels.tolist() == [0] * 6 + [1] * 4
    assert dataset.test.labels.tolist() == [0, 1, 1]


def test_images_are_scaled_and_cropped_at_their_centre(tmp_path):
    source = draw_folder(tmp_path / "set", {"a": 5, "b": 5})
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 200  # the square in the middle
    Image.fromarray(wide).save(source / "a" / "wide.png")
    dataset = load(f"images:{source}", tmp_path / "data", 8)
    assert dataset.train.image == (8, 8, 3)
    pixels = torch.cat((dataset.train.pixels, dataset.test.pixels))
    assert any((x > 180).all() for x in pixels)


def test_grey_images_have_one_channel(tmp_path):
    source = draw_folder(tmp_path / "set", {"a": 5, "b": 5}, mode="L")
    assert load(f"images:{source}", tmp_path / "data").train.image == (12, 12, 1)


def test_every_kind_of_file_that_is_read_can_be_decoded(tmp_path):
    image = Image.fromarray(np.full((4, 4, 3), 90, np.uint8))
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for suffix in SUFFIXES:
            kind = image.convert("L") if suffix == ".pgm" else image
            kind.save(tmp_path / "set" / name / f"x{suffix}")
        (tmp_path / "set" / name / "notes.txt").write_text("no image")
    dataset = load(f"images:{tmp_path}/set", tmp_path / "data")
    assert len(dataset.train) + len(dataset.test) == 2 * len(SUFFIXES)
    assert all(abs(value - 90) <= 2 for value in colours(dataset.train))


def test_a_data_set_is_decoded_once_and_again_when_its_files_change(tmp_path):
    source = draw_folder(tmp_path / "set", {"a": 5, "b": 5})
    name, data = f"images:{source}", tmp_path / "data"
    first = load(name, data)
    [decoded] = data.glob("images-*.pt")
    load.cache_clear()
    load(name, data)
    assert list(data.glob("images-*.pt")) == [decoded]
    os.utime(source / "a" / "0.png", (1, 1))  # touched, with the same content
    load.cache_clear()
    assert load(name, data).sha256 == first.sha256
    draw_folder(source, {"a": 6})
    load.cache_clear()
    assert load(name, data).sha256 != first.sha256


def test_an_npz_file_is_read_as_it_is(tmp_path):
    x = np.arange(6 * 4 * 5, dtype=np.uint8).reshape(6, 4, 5)
    y = np.array([0, 2, 1, 0, 1, 2])
    np.savez(tmp_path / "s.npz", x_train=x[:4], y_train=y[:4], x_test=x[4:], y_test=y[4:])
    dataset = load(f"npz:{tmp_path}/s.npz", tmp_path / "data")
    assert dataset.train.image == (4, 5, 1) and dataset.num_classes == 3
    assert torch.equal(dataset.train.pixels[..., 0], torch.from_numpy(x[:4]))
    assert dataset.test.labels.tolist() == [1, 2]


X, Y = np.zeros((4, 3, 3), np.uint8), np.array([0, 1, 0, 1])


@pytest.mark.parametrize(
    "arrays, message",
    [
        ({"y_test": None}, "has no array y_test"),
        ({"x_train": X.astype(float)}, r"x_train must be uint8 .* but is float64 \[4, 3, 3\]"),
        ({"x_test": X[:, :, 0]}, r"x_test must be uint8 .* but is uint8 \[4, 3\]"),
        ({"y_train": Y[:3]}, r"y_train must be class numbers from 0, \[4\], but is int64 \[3\]"),
        ({"y_train": Y - 1}, "y_train must be class numbers .* with -1"),
        ({"y_train": Y.astype(float)}, "y_train must be class numbers .* float64"),
        ({"x_test": np.zeros((4, 2, 3), np.uint8)}, r"images of \(3, 3, 1\) and \(2, 3, 1\)"),
        ({"y_train": Y * 0, "y_test": Y * 0}, "at least 2 classes"),
        ({"y_train": Y + 1, "y_test": Y + 1}, r"y_train has no image of class 0, but reaches 2"),
        ({"y_train": Y * 10**9}, "y_train has no image of class 1, but reaches 1000000000"),
        ({"y_test": Y * 2}, "y_train has no image of class 2"),
        ({"y_train": Y.astype(np.uint64) + np.uint64(2**63)}, "y_train has no image of class 0"),
    ],
)
def test_an_npz_file_that_does_not_fit_is_refused(tmp_path, arrays, message):
    whole = {"x_train": X, "y_train": Y, "x_test": X, "y_test": Y, **arrays}
    np.savez(tmp_path / "s.npz", **{k: v for k, v in whole.items() if v is not None})
    with pytest.raises(DataError, match=message):
        load(f"npz:{tmp_path}/s.npz", tmp_path / "data")


@pytest.mark.parametrize("damage", ["cut", "flip", "flip compressed", "npy", "text", "empty"])
def test_a_damaged_npz_file_is_refused(tmp_path, damage):
    path = tmp_path / "s.npz"
    save = np.savez_compressed if "compressed" in damage else np.savez
    save(path, x_train=X, y_train=Y, x_test=X, y_test=Y)
    content = bytearray(path.read_bytes())
    content[60:80] = bytes(20)
    other = {"cut": content[:300], "text": b"no arrays", "empty": b""}
    path.write_bytes(other.get(damage, content))
    if damage == "npy":
        with open(path, "wb") as file:
            np.save(file, X)
    with pytest.raises(DataError, match="s.npz is not a readable npz file"):
        load(f"npz:{path}", tmp_path / "data")


def test_an_npz_file_never_runs_code(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    np.savez(tmp_path / "s.npz", x_train=np.array([Trap()]), y_train=Y, x_test=X, y_test=Y)
    with pytest.raises(DataError, match="not a readable npz file"):
        load(f"npz:{tmp_path}/s.npz", tmp_path / "data")
    assert not (tmp_path / "ran").exists()


def break_image(source):
    (source / "a" / "0.png").write_bytes(b"\x89PNG broken")


def save_floats(source):
    Image.fromarray(np.full((12, 12), 0.5, np.float32)).save(source / "a" / "0.tif")


def save_16_bits(source):
    Image.fromarray(np.full((12, 12), 40_000, np.uint16)).save(source / "a" / "0.png")


def save_too_large(source):
    Image.new("1", (20_000, 20_000)).save(source / "a" / "0.png")


def lose_target(source):
    (source / "a" / "lost.png").symlink_to(source / "nowhere.png")


def name_parts_otherwise(source):
    for name, other in (("a", "Training"), ("b", "Testing")):
        (source / other).mkdir()
        (source / name).rename(source / other / "x")


@pytest.mark.parametrize(
    "classes, change, message",
    [
        ({"a": 3}, lambda source: None, "at least 2 classes .* but has a"),
        ({"a": 3, "b": 3}, break_image, "a/0.png is not a readable image"),
        (
            {"a": 3, "b": 3},
            lambda source: draw_folder(source, {"c": 1}, size=9),
            r"different sizes \(12 x 12, 9 x 9, ...\); set image_size",
        ),
        ({"a": 1, "b": 1}, lambda source: None, "too few images for a test set"),
        ({"a": 3, "b": 3}, save_16_bits, r"a/0.png has more than 8 bits .* \(mode I;16\)"),
        ({"a": 3, "b": 3}, save_floats, r"a/0.tif has more than 8 bits .* \(mode F\)"),
        ({"a": 3, "b": 3}, save_too_large, "a/0.png is not a readable image .*exceeds limit"),
        ({"a": 3, "b": 3}, lose_target, "a/lost.png .*No such file"),
        ({"a": 3, "b": 3}, name_parts_otherwise, "Testing, Training.*rename them to train/ and"),
    ],
)
def test_a_folder_that_does_not_fit_is_refused(tmp_path, classes, change, message):
    source = draw_folder(tmp_path / "set", classes)
    change(source)
    with pytest.raises(DataError, match=message):
        load(f"images:{source}", tmp_path / "data")


def test_parts_with_other_classes_or_without_a_test_set_are_refused(tmp_path):
    draw_folder(tmp_path / "set" / "train", {"a": 3, "b": 3})
    with pytest.raises(DataError, match="has train/, but neither test/ nor val/"):
        load(f"images:{tmp_path}/set", tmp_path / "data")
    draw_folder(tmp_path / "set" / "test", {"a": 3, "z": 3})
    with pytest.raises(DataError, match="classes that are not in train/: z"):
        load(f"images:{tmp_path}/set", tmp_path / "data")


def test_hidden_files_and_directories_are_no_images(tmp_path):
    source = draw_folder(tmp_path / "set", {"a": 5, "b": 5})
    draw_folder(source, {".ipynb_checkpoints": 5, "a/.ipynb_checkpoints": 5})
    (source / "a" / "._0.png").write_bytes(b"what macOS leaves in archives")
    dataset = load(f"images:{source}", tmp_path / "data")
    assert (len(dataset.train), len(dataset.test), dataset.num_classes) == (8, 2, 2)


def test_linked_directories_are_read_and_their_changes_are_noticed(tmp_path):
    draw_folder(tmp_path / "elsewhere", {"a": 5})
    source = draw_folder(tmp_path / "set", {"b": 5})
    (source / "a").symlink_to(tmp_path / "elsewhere" / "a")
    first = load(f"images:{source}", tmp_path / "data")
    assert first.num_classes == 2
    Image.new("RGB", (12, 12)).save(tmp_path / "elsewhere" / "a" / "0.png")
    load.cache_clear()
    assert load(f"images:{source}", tmp_path / "data").sha256 != first.sha256


def test_a_path_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="gone.*No such file"):
        load(f"npz:{tmp_path}/gone.npz", tmp_path / "data")
    with pytest.raises(DataError, match="gone.*No such file"):
        load(f"images:{tmp_path}/gone", tmp_path / "data")
