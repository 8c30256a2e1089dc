import gzip
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from ressmooth.errors import DataError
from ressmooth.training import data
from ressmooth.training.data import (
    DEBIAN_FASHION_MNIST,
    LOADERS,
    Batches,
    Dataset,
    Images,
    Normaliser,
    load,
    split,
    stream,
)


def numbered(count, start=0):
    """Return images whose two channels encode their number, which is also their label."""
    number = torch.arange(start, start + count)
    pixels = torch.stack((number // 256, number % 256), -1).to(torch.uint8)
    return Images(pixels[:, None, None, :].expand(-1, 3, 2, -1).contiguous(), number)


def numbers(pixels):
    return pixels[:, 0, 0, 0].long() * 256 + pixels[:, 0, 0, 1].long()


def same(a, b):
    return torch.equal(a.pixels, b.pixels) and torch.equal(a.labels, b.labels)


def unnormalised(pixels):
    """Replaces a Normaliser: uint8 [B, H, W, C]."""
    return pixels


def batches(images, size, augmentation="none", seed=0):
    return Batches(images, unnormalised, size, augmentation, seed)


def epoch_numbers(images, size, epoch=1, seed=0):
    return [numbers(pixels) for pixels, _ in batches(images, size, seed=seed).epoch(epoch)]


@pytest.fixture
def dataset():
    return Dataset(numbered(1000), numbered(200, start=5000), 10)


@pytest.fixture
def offline(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # urllib caches its opener and the opener's proxies
    monkeypatch.setattr("urllib.request._opener", None)


# random numbers


def test_a_stream_depends_on_its_seed_and_purpose_alone():
    def first(*key):
        return torch.rand(4, generator=stream(*key)).tolist()

    assert first(0, "split") == first(0, "split")
    different = [first(0, "split"), first(1, "split"), first(0, "epoch", 1), first(0, "epoch", 2)]
    assert len(set(map(tuple, different))) == 4


def test_a_stream_neither_reads_nor_changes_the_state_of_torch():
    torch.manual_seed(1)
    before = torch.rand(3, generator=stream(0, "x"))
    state = torch.get_rng_state()
    torch.manual_seed(2)
    assert torch.equal(before, torch.rand(3, generator=stream(0, "x")))
    torch.manual_seed(1)
    assert torch.equal(state, torch.get_rng_state())


# data sets


@pytest.mark.parametrize(
    "name, train, test, shape",
    [("digits", 1437, 360, (8, 8, 1)), ("synthetic", 2560, 512, (32, 32, 3))],
)
def test_built_in_data_sets_have_their_shapes(name, train, test, shape, tmp_path):
    dataset = load(name, tmp_path)
    assert dataset.train.pixels.shape == (train, *shape)
    assert dataset.test.pixels.shape == (test, *shape)
    assert dataset.train.pixels.dtype == torch.uint8 and dataset.train.labels.dtype == torch.int64
    assert set(dataset.train.labels.tolist()) == set(dataset.test.labels.tolist()) == set(range(10))


@pytest.mark.parametrize("name", ["digits", "synthetic"])
def test_built_in_data_sets_are_the_same_every_time(name, tmp_path):
    torch.manual_seed(1)
    first = LOADERS[name](tmp_path)
    torch.manual_seed(2)
    again = LOADERS[name](tmp_path)
    assert same(first.train, again.train) and same(first.test, again.test)


def test_digits_are_the_images_of_scikit_learn(tmp_path):
    from sklearn.datasets import load_digits

    dataset = load("digits", tmp_path)
    pixels = torch.cat((dataset.train.pixels, dataset.test.pixels))
    expected = torch.as_tensor(load_digits().images * 15).to(torch.uint8)[..., None]
    assert sorted(map(bytes, pixels.numpy())) == sorted(map(bytes, expected.numpy()))


def test_synthetic_images_belong_to_the_pattern_of_their_class(tmp_path):
    dataset = load("synthetic", tmp_path)
    train, test = dataset.train, dataset.test
    means = torch.stack([train.pixels[train.labels == c].float().mean(0) for c in range(10)])
    distance = torch.cdist(test.pixels.float().flatten(1), means.flatten(1))
    assert (distance.argmin(1) == test.labels).float().mean() > 0.9


def test_a_data_set_is_read_once(tmp_path):
    assert load("digits", tmp_path) is load("digits", tmp_path)


def test_an_unknown_data_set_is_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match="'digit'.*'digits'") as error:
        load("digit", tmp_path)
    assert all(name in str(error.value) for name in LOADERS)


@pytest.mark.parametrize(
    "name, file",
    [
        ("cifar10", "cifar-10-python.tar.gz"),
        ("cifar100", "cifar-100-python.tar.gz"),
        ("svhn", "train_32x32.mat"),
    ],
)
def test_a_missing_data_set_names_file_and_directory(name, file, offline, tmp_path):
    with pytest.raises(DataError) as error:
        load(name, tmp_path / "new")
    assert file in str(error.value) and str(tmp_path / "new") in str(error.value)


def test_missing_fashion_mnist_names_files_and_directory(offline, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    with pytest.raises(DataError) as error:
        load("fashion_mnist", tmp_path)
    assert "idx3" in str(error.value) and str(tmp_path) in str(error.value)


def write_idx(directory, part, pixels, labels):
    """Write idx files: 0, 0, type 8 (uint8), number of axes, each length as 4 bytes, values."""
    for name, values in (("images-idx3", pixels), ("labels-idx1", labels)):
        header = bytes((0, 0, 8, values.ndim))
        header += b"".join(length.to_bytes(4) for length in values.shape)
        file = directory / f"{part}-{name}-ubyte.gz"
        file.write_bytes(gzip.compress(header + values.numpy().tobytes()))


@pytest.fixture
def own_fashion_mnist(tmp_path, monkeypatch):
    """Seven training and three test images instead of Debian's package."""
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path)
    generator = torch.Generator().manual_seed(0)
    parts = {}
    for part, count in (("train", 7), ("t10k", 3)):
        pixels = torch.randint(256, (count, 28, 28), generator=generator).to(torch.uint8)
        labels = torch.randint(10, (count,), generator=generator).to(torch.uint8)
        write_idx(tmp_path, part, pixels, labels)
        parts[part] = pixels, labels
    return tmp_path, parts


def test_fashion_mnist_is_read_from_idx_files(own_fashion_mnist):
    directory, parts = own_fashion_mnist
    dataset = load("fashion_mnist", directory)
    for images, (pixels, labels) in zip(
        (dataset.train, dataset.test), (parts["train"], parts["t10k"]), strict=True
    ):
        assert torch.equal(images.pixels, pixels[..., None])
        assert torch.equal(images.labels, labels.long())


def load_in_another_process(root):
    """Return what a process without the source files loads, and whether it maps the file."""
    code = (
        "import sys; from pathlib import Path; from ressmooth.training import data\n"
        "data.DEBIAN_FASHION_MNIST = Path('/absent')\n"
        "dataset = data.load('fashion_mnist', Path(sys.argv[1]))\n"
        "print(int(dataset.train.pixels.sum()), dataset.test.labels.tolist())\n"
        "print(sys.argv[1] + '/fashion_mnist-' in open('/proc/self/maps').read())"
    )
    command = [sys.executable, "-c", code, str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")


def test_other_processes_map_the_decoded_file(own_fashion_mnist):
    directory, parts = own_fashion_mnist
    load("fashion_mnist", directory)
    content, is_mapped, _ = load_in_another_process(directory)
    assert content == f"{int(parts['train'][0].sum())} {parts['t10k'][1].tolist()}"
    assert is_mapped == "True"


def test_a_damaged_decoded_file_is_ignored(own_fashion_mnist):
    directory, parts = own_fashion_mnist
    load("fashion_mnist", directory)
    (file,) = directory.glob("fashion_mnist-*.pt")
    content = bytearray(file.read_bytes())
    content[content.find(parts["train"][0].numpy().tobytes()[:64])] ^= 1
    file.write_bytes(content)
    data.load.cache_clear()
    assert torch.equal(load("fashion_mnist", directory).train.pixels[..., 0], parts["train"][0])


def test_a_data_set_loads_without_a_writable_directory(own_fashion_mnist):
    directory, parts = own_fashion_mnist
    (directory / "file").write_text("")
    dataset = load("fashion_mnist", directory / "file" / "data")
    assert torch.equal(dataset.train.pixels[..., 0], parts["train"][0])


@pytest.mark.parametrize("damage", ["missing", "cut", "not-gzip"])
def test_damaged_fashion_mnist_is_a_data_error_that_names_the_file(damage, own_fashion_mnist):
    directory, _ = own_fashion_mnist
    file = directory / "train-images-idx3-ubyte.gz"
    content = file.read_bytes()
    file.unlink()
    if damage != "missing":
        file.write_bytes(content[: len(content) // 2] if damage == "cut" else b"<html>")
    with pytest.raises(DataError, match=file.name):
        load("fashion_mnist", directory)


def test_damaged_downloaded_fashion_mnist_is_a_data_error(offline, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name in ("images-idx3", "labels-idx1"):
            (raw / f"{part}-{name}-ubyte").write_bytes(b"")  # as a full disk leaves them
    with pytest.raises(DataError, match="FashionMNIST"):
        load("fashion_mnist", tmp_path)


@pytest.mark.skipif(
    not DEBIAN_FASHION_MNIST.is_dir(), reason="Debian's package dataset-fashion-mnist is missing"
)
def test_fashion_mnist_of_debian_is_complete(tmp_path):
    dataset = load("fashion_mnist", tmp_path)
    assert dataset.train.pixels.shape == (60_000, 28, 28, 1)
    assert dataset.test.pixels.shape == (10_000, 28, 28, 1)
    assert torch.bincount(dataset.train.labels).tolist() == [6000] * 10
    assert torch.bincount(dataset.test.labels).tolist() == [1000] * 10


# splits


@pytest.mark.parametrize(
    "fraction, selection, expected",
    [
        (1.0, "paper", 1000),
        (0.125, "paper", 125),
        (1.0, "holdout", 900),
        (0.5, "holdout", 450),
        (1e-9, "paper", 1),
    ],
)
def test_the_fraction_applies_to_what_is_not_held_out(fraction, selection, expected, dataset):
    splits = split(dataset, fraction=fraction, selection=selection, seed=0)
    kept = numbers(splits.train.pixels)
    assert len(splits.train) == expected == len(set(kept.tolist()))
    assert torch.equal(kept, splits.train.labels)


def test_the_held_out_tenth_comes_from_the_training_set_alone(dataset):
    splits = split(dataset, fraction=1.0, selection="holdout", seed=3)
    train = set(numbers(splits.train.pixels).tolist())
    held_out = set(numbers(splits.validation.pixels).tolist())
    assert len(held_out) == 100 and train | held_out == set(range(1000)) and not train & held_out
    assert same(splits.test, dataset.test)


def test_the_papers_validation_set_is_the_test_set(dataset):
    splits = split(dataset, fraction=0.5, selection="paper", seed=3)
    assert same(splits.validation, dataset.test) and same(splits.test, dataset.test)


@pytest.mark.parametrize("selection", ["paper", "holdout"])
def test_the_split_depends_on_the_seed_alone(selection, dataset):
    torch.manual_seed(1)
    first = split(dataset, fraction=0.5, selection=selection, seed=7)
    torch.manual_seed(2)
    again = split(dataset, fraction=0.5, selection=selection, seed=7)
    other = split(dataset, fraction=0.5, selection=selection, seed=8)
    assert same(first.train, again.train) and same(first.validation, again.validation)
    assert set(first.train.labels.tolist()) != set(other.train.labels.tolist())


def test_the_held_out_tenth_changes_with_the_seed_but_not_with_the_fraction(dataset):
    def held_out(fraction, seed):
        return split(dataset, fraction=fraction, selection="holdout", seed=seed).validation.labels

    assert torch.equal(held_out(1.0, 0), held_out(0.125, 0))
    assert not torch.equal(held_out(1.0, 0), held_out(1.0, 1))


def test_a_smaller_fraction_is_a_subset_of_a_larger_one(dataset):
    small, large = (
        set(split(dataset, fraction=f, selection="paper", seed=0).train.labels.tolist())
        for f in (0.125, 0.5)
    )
    assert small < large


def test_a_fraction_is_drawn_uniformly(dataset):
    kept = split(dataset, fraction=0.5, selection="paper", seed=0).train.labels
    assert all(80 < ((kept >= a) & (kept < a + 200)).sum() < 120 for a in range(0, 1000, 200))


# normalisation


@pytest.mark.parametrize("channels", [1, 3])
def test_normalised_training_images_have_mean_zero_and_std_one(channels):
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (50, 6, 5, channels), generator=generator).to(torch.uint8)
    pixels[..., 0] //= 3
    normalised = Normaliser(Images(pixels, torch.zeros(50)))(pixels)
    x = pixels.double().permute(0, 3, 1, 2)
    mean, std = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), correction=0, keepdim=True)
    assert normalised.dtype == torch.float32
    torch.testing.assert_close(normalised.double(), (x - mean) / std, rtol=0, atol=1e-5)


def test_other_images_are_normalised_with_the_statistics_of_the_training_set():
    train = torch.tensor([10, 30], dtype=torch.uint8).view(2, 1, 1, 1)  # mean 20, std 10
    normalise = Normaliser(Images(train, torch.zeros(2)))
    test = torch.tensor([[20, 50]], dtype=torch.uint8).view(1, 1, 2, 1)
    torch.testing.assert_close(normalise(test), torch.tensor([[[[0.0, 3.0]]]]))


def test_a_constant_channel_is_normalised_to_zero():
    pixels = torch.full((4, 3, 3, 1), 200, dtype=torch.uint8)
    assert torch.equal(Normaliser(Images(pixels, torch.zeros(4)))(pixels), torch.zeros(4, 1, 3, 3))


def test_normalising_does_not_change_the_pixels():
    pixels = numbered(300).pixels
    before = pixels.clone()
    Normaliser(Images(pixels, torch.zeros(300)))(pixels)
    assert torch.equal(pixels, before)


# batches


def test_an_epoch_contains_each_image_once_and_drops_the_incomplete_batch():
    images = numbered(1000)
    shown = epoch_numbers(images, 128)
    assert [len(batch) for batch in shown] == [128] * 7 and len(batches(images, 128)) == 7
    assert len(set(torch.cat(shown).tolist())) == 7 * 128


def test_the_dropped_images_change_with_the_epoch():
    shown = [set(torch.cat(epoch_numbers(numbered(100), 64, e)).tolist()) for e in range(1, 30)]
    assert set.union(*shown) == set(range(100))


def test_a_batch_is_at_most_as_large_as_the_training_set():
    (batch,) = epoch_numbers(numbered(10), 128)
    assert sorted(batch.tolist()) == list(range(10))


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop-flip"])
def test_batches_depend_on_seed_and_epoch_alone(augmentation):
    def epoch(seed, number):
        pairs = batches(distinct(), 8, augmentation, seed).epoch(number)
        pixels, labels = map(torch.cat, zip(*pairs, strict=True))
        return Images(pixels, labels)

    torch.manual_seed(1)
    first = epoch(5, 2)
    torch.manual_seed(2)
    assert same(first, epoch(5, 2))
    assert not torch.equal(first.labels, epoch(5, 3).labels)
    assert not torch.equal(first.labels, epoch(6, 2).labels)


def distinct(count=16, height=6, width=5):
    """Return images without repeated pixel values and without 0, the value of the padding."""
    generator = torch.Generator().manual_seed(0)
    size = height * width
    pixels = [torch.randperm(255, generator=generator)[:size] + 1 for _ in range(count)]
    pixels = torch.stack(pixels).view(count, height, width, 1).to(torch.uint8)
    return Images(torch.cat((pixels, 255 - pixels), -1), torch.arange(count))


def crops_and_flips(image, padding):
    """Return every (top, left, flip) of a zero-padded [H, W, C] image, by slicing."""
    height, width = image.shape[:2]
    padded = F.pad(image, (0, 0, padding, padding, padding, padding))
    offsets = range(2 * padding + 1)
    crops = [padded[t : t + height, x : x + width] for t in offsets for x in offsets]
    return torch.stack(crops + [crop.flip(1) for crop in crops])


@pytest.mark.parametrize("augmentation, padding", [("none", None), ("flip", 0), ("crop-flip", 4)])
def test_every_crop_and_flip_occurs_and_nothing_else(augmentation, padding):
    images = distinct()
    possible = [
        image[None] if padding is None else crops_and_flips(image, padding)
        for image in images.pixels
    ]
    occurred = torch.zeros(len(possible[0]), dtype=torch.long)
    training = batches(images, 8, augmentation)
    for epoch in range(1, 151 if padding else 11):
        for pixels, labels in training.epoch(epoch):
            for shown, label in zip(pixels, labels.tolist(), strict=True):
                matches = (possible[label] == shown).flatten(1).all(1)
                assert matches.sum() == 1
                occurred += matches
    assert (occurred > 0).all()


def test_crops_and_flips_are_uniform():
    images = Images(torch.ones(4000, 1, 1, 1, dtype=torch.uint8), torch.arange(4000))
    (pixels, _), *_ = batches(images, 4000, "crop-flip").epoch(1)
    share = pixels.float().mean().item()  # a 1x1 image is seen at one of 9 x 9 offsets
    assert share == pytest.approx(1 / 81, abs=0.006)
    two = Images(
        torch.tensor([1, 3], dtype=torch.uint8).expand(4000, 1, 2)[..., None], images.labels
    )
    (pixels, _), *_ = batches(two, 4000, "flip").epoch(1)
    assert (pixels[:, 0, 0, 0] == 3).float().mean().item() == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize("augmentation", ["none", "flip"])
def test_labels_follow_their_images(augmentation):
    for pixels, labels in batches(numbered(300), 32, augmentation).epoch(1):
        assert torch.equal(numbers(pixels), labels)


@pytest.mark.parametrize("augmentation", ["none", "flip", "crop-flip"])
def test_batches_are_normalised_and_channels_last(augmentation):
    pixels = torch.randint(256, (20, 6, 5, 3), generator=torch.Generator().manual_seed(0))
    images = Images(pixels.to(torch.uint8), torch.arange(20))
    normalise = Normaliser(images)
    plain, normalised = (
        next(Batches(images, n, 8, augmentation, 0).epoch(1))[0] for n in (unnormalised, normalise)
    )
    assert normalised.shape == (8, 3, 6, 5) and normalised.dtype == torch.float32
    assert normalised.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(normalised, normalise(plain))


def test_an_unknown_augmentation_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="'flop'.*'flip'.*crop-flip, flip, none"):
        batches(numbered(4), 2, "flop")
