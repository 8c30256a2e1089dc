import gzip
import hashlib
import subprocess
import sys

import pytest
import torch

from ressmooth.errors import DataError
from ressmooth.training import datasets
from ressmooth.training.datasets import DEBIAN_FASHION_MNIST, LOADERS, load


def same(a, b):
    return torch.equal(a.pixels, b.pixels) and torch.equal(a.labels, b.labels)


@pytest.fixture
def offline(monkeypatch):
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    # urllib caches its opener and the opener's proxies
    monkeypatch.setattr("urllib.request._opener", None)


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
    labels = torch.cat((dataset.train.labels, dataset.test.labels))
    theirs = load_digits()
    expected = torch.as_tensor(theirs.images * 15).to(torch.uint8)[..., None]
    assert sorted(zip(map(bytes, pixels.numpy()), labels, strict=True)) == sorted(
        zip(map(bytes, expected.numpy()), theirs.target, strict=True)
    )


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
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
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
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path)
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
        "import sys; from pathlib import Path; from ressmooth.training import datasets\n"
        "datasets.DEBIAN_FASHION_MNIST = Path('/absent')\n"
        "dataset = datasets.load('fashion_mnist', Path(sys.argv[1]))\n"
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
    load.cache_clear()
    assert torch.equal(load("fashion_mnist", directory).train.pixels[..., 0], parts["train"][0])


def test_a_data_set_that_is_not_kept_is_neither_downloaded_nor_saved(own_fashion_mnist):
    directory, parts = own_fashion_mnist
    home = directory / "home"
    found = load("fashion_mnist", home, keep=False)
    assert torch.equal(found.train.pixels[..., 0], parts["train"][0])
    for name in ("cifar10", "cifar100", "svhn"):
        with pytest.raises(DataError):
            load(name, home, keep=False)
    assert not home.exists()


def test_a_data_set_that_is_not_kept_is_read_from_the_decoded_file(own_fashion_mnist):
    directory, parts = own_fashion_mnist
    load("fashion_mnist", directory)
    for file in directory.glob("*.gz"):
        file.unlink()
    found = load("fashion_mnist", directory, keep=False)
    assert torch.equal(found.test.pixels[..., 0], parts["t10k"][0])


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
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    for part in ("train", "t10k"):
        for name in ("images-idx3", "labels-idx1"):
            (raw / f"{part}-{name}-ubyte").write_bytes(b"")  # as a full disk leaves them
    with pytest.raises(DataError, match="FashionMNIST"):
        load("fashion_mnist", tmp_path)


ORIGINALS = {
    "cifar10": ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "cifar100": ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
    "svhn": ("train_32x32.mat", "e26dedcc434d2e4c54c9b2d4a06d8373"),
    "fashion_mnist": (
        "FashionMNIST/raw/train-images-idx3-ubyte.gz",
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    ),
}


@pytest.mark.parametrize("name", ORIGINALS)
def test_a_wrong_or_missing_original_is_named_with_its_sum(name, offline, tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "DEBIAN_FASHION_MNIST", tmp_path / "absent")
    file, md5 = ORIGINALS[name]
    with pytest.raises(DataError, match="could not be downloaded") as raised:
        load(name, tmp_path)
    assert f"{file} (MD5 {md5})" in str(raised.value).partition("\n")[0]  # what the queue shows
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_bytes(b"half of it")
    with pytest.raises(DataError) as raised:
        load(name, tmp_path)
    wrong = hashlib.md5(b"half of it").hexdigest()
    sums = f"its MD5 sum is {wrong}, but should be {md5}"
    assert f"{tmp_path / file} is not the original: {sums}. " in str(raised.value)
    assert str(raised.value).endswith("Remove the file, or copy it again.")
    assert (tmp_path / file).read_bytes() == b"half of it"


@pytest.mark.skipif(
    not DEBIAN_FASHION_MNIST.is_dir(), reason="Debian's package dataset-fashion-mnist is missing"
)
def test_fashion_mnist_of_debian_is_complete(tmp_path):
    dataset = load("fashion_mnist", tmp_path)
    assert dataset.train.pixels.shape == (60_000, 28, 28, 1)
    assert dataset.test.pixels.shape == (10_000, 28, 28, 1)
    assert torch.bincount(dataset.train.labels).tolist() == [6000] * 10
    assert torch.bincount(dataset.test.labels).tolist() == [1000] * 10
