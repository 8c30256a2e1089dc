"""Map-style data sets, which are read when they are needed."""

import random

import numpy as np
import pytest
import torch
from helpers.plugins import SOURCE, plugins
from PIL import Image

from ressmooth.config import parse
from ressmooth.errors import ConfigError
from ressmooth.training import checkpoint
from ressmooth.training.streaming import StreamBatches, Streamed, StreamNormaliser, whole
from ressmooth.training.trained import load_classifier
from ressmooth.training.trainer import Trainer

CPU = torch.device("cpu")
STREAMED = SOURCE.replace(
    "    return ressmooth.Dataset(draw(count), draw(20), num_classes=2)",
    """    class Lazy(torch.utils.data.Dataset):
        def __init__(self, images):
            self.images = images

        def __len__(self):
            return len(self.images)

        def __getitem__(self, index):
            return self.images.pixels[index].permute(2, 0, 1), self.images.labels[index]

    return ressmooth.Dataset(Lazy(draw(count)), Lazy(draw(20)), num_classes=2)""",
)
CONFIG = {"dataset": "stripes", "model": "mlp", "method": "cross_entropy", "lr": 0.02}
CONFIG |= {"epochs": 3, "batch_size": 16, "threads": 1, "device": "cpu"}


class Numbered:
    """Images of one value, which is their number and their label."""

    def __init__(self, count, size=6):
        self.count, self.size = count, size

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        pixels = torch.zeros(3, self.size, self.size, dtype=torch.uint8)
        pixels[:, :, : self.size // 2] = index
        return pixels, index


def unnormalised(pixels):
    return pixels


def batches(images, augmentation="none", seed=0, workers=0, **options):
    return StreamBatches(images, unnormalised, 8, augmentation, seed, workers, CPU, **options)


def test_parts_of_a_part_keep_their_images():
    part = whole(Numbered(20))[torch.tensor([3, 5, 7])][torch.tensor([2, 0])]
    assert [part.read(i)[1] for i in range(len(part))] == [7, 3]
    assert part.image == (6, 6, 3)


def test_pil_images_are_read_and_others_are_refused():
    class Source(list):
        pass

    grey = Image.new("L", (4, 3), 200)
    pixels, label = whole(Source([(grey, 1)])).read(0)
    assert pixels.shape == (1, 3, 4) and pixels.unique().tolist() == [200] and label == 1
    with pytest.raises(ConfigError, match=r"image 0 should be .* is torch.float32 \[3, 4, 4\]"):
        whole(Source([(torch.zeros(3, 4, 4), 1)])).read(0)


def test_an_epoch_has_each_image_once_and_drops_the_incomplete_batch():
    found = [labels for _, labels in batches(whole(Numbered(20))).epoch(1)]
    assert [len(labels) for labels in found] == [8, 8]
    assert len(torch.cat(found).unique()) == 16


def test_the_incomplete_batch_is_kept_if_asked_for():
    kept = batches(whole(Numbered(20)), drop_last=False)
    found = [labels for _, labels in kept.epoch(1)]
    assert [len(labels) for labels in found] == [8, 8, 4] and len(kept) == 3
    assert len(torch.cat(found).unique()) == 20 == kept.samples


def test_crops_move_images_by_at_most_the_padding():
    lit = torch.zeros(3, 6, 6, dtype=torch.uint8)
    lit[:, 2, 2] = 255
    images = whole([(lit, 0)] * 200)
    for padding in (1, 2):
        cropped = batches(images, "crop", crop_padding=padding).epoch(1)
        pixels = torch.cat([pixels for pixels, _ in cropped])
        moved = set(map(tuple, pixels[:, 0].nonzero()[:, 1:].tolist()))
        near = range(2 - padding, 3 + padding)
        assert moved == {(y, x) for y in near for x in near}


def test_padding_surrounds_streamed_images():
    images = whole(Numbered(20))
    normalise = StreamNormaliser(images, CPU, padding=1)
    pixels = torch.stack([images.read(i)[0] for i in range(20)])
    padded = normalise(pixels)
    assert padded.shape == (20, 3, 8, 8)
    assert torch.equal(padded[:, :, 1:-1, 1:-1], StreamNormaliser(images, CPU)(pixels))
    assert padded[:, :, 0].unique().numel() == 1


def test_images_of_an_evaluation_come_in_order():
    found = list(batches(whole(Numbered(20)), "crop-flip").in_order())
    assert torch.cat([labels for _, labels in found]).tolist() == list(range(20))
    assert all((pixels[:, :, :, :3] == labels.view(-1, 1, 1, 1)).all() for pixels, labels in found)


@pytest.mark.parametrize("augmentation", ["flip", "crop", "crop-flip"])
def test_batches_depend_on_seed_and_epoch_alone(augmentation):
    images = whole(Numbered(40))

    def pixels(epoch, **options):
        torch.rand(3)  # the state of torch does not matter
        return torch.cat([x for x, _ in batches(images, augmentation, **options).epoch(epoch)])

    first = pixels(1)
    assert torch.equal(first, pixels(1))
    assert torch.equal(first, pixels(1, workers=2))
    assert not torch.equal(first, pixels(2))
    assert not torch.equal(first, pixels(1, seed=1))


class Noisy(Numbered):
    """Images that are augmented by the user, with any generator."""

    def __getitem__(self, index):
        pixels, label = super().__getitem__(index)
        noise = np.random.randint(9) + random.randrange(9) + torch.randint(9, ()).item()
        return pixels + noise, label


def test_the_users_own_augmentation_depends_on_seed_and_epoch_alone():
    def pixels(epoch, **options):
        found = batches(whole(Noisy(24)), **options).epoch(epoch)
        return torch.cat([x for x, _ in found])

    first = pixels(1)
    assert torch.equal(first, pixels(1))
    assert torch.equal(first, pixels(1, workers=2))
    assert not torch.equal(first, pixels(2))


def test_flips_and_crops_occur():
    images = Streamed(Numbered(2), torch.ones(64, dtype=torch.int64))
    flipped = torch.cat([x for x, _ in batches(images, "flip").epoch(1)])
    assert 16 < (flipped[:, 0, 0, 0] == 0).sum() < 48
    cropped = torch.cat([x for x, _ in batches(images, "crop-flip").epoch(1)])
    assert len(cropped.unique(dim=0)) > 10


def test_reading_does_not_change_the_random_numbers_of_the_training():
    def drawn(workers):
        torch.manual_seed(1)
        found = batches(whole(Numbered(24)), "flip", workers=workers).epoch(1)
        return [torch.rand(()).item() for _ in found]

    torch.manual_seed(1)
    expected = [torch.rand(()).item() for _ in range(3)]
    assert drawn(0) == drawn(1) == expected


def test_normalised_images_have_mean_zero_and_std_one():
    images = whole(Numbered(100))
    pixels = torch.stack([images.read(i)[0] for i in range(100)])
    normalised = StreamNormaliser(images, CPU)(pixels)
    assert normalised.mean().item() == pytest.approx(0, abs=1e-5)
    assert normalised.std().item() == pytest.approx(1, abs=1e-3)


def trainer(folder, source=STREAMED, **values):
    given = plugins(source)
    return Trainer(parse({**CONFIG, **values}, given), folder, given)


def train(run):
    while run.train_epoch() is not None:
        pass
    return checkpoint.sha256(checkpoint.encode(run.model.state_dict()))


def test_a_streamed_run_learns_and_resumes_bit_for_bit(tmp_path):
    whole_run = trainer(tmp_path, augmentation="flip")
    expected = train(whole_run)
    assert whole_run.result().max_acc > 90
    stopped = trainer(tmp_path, augmentation="flip")
    stopped.train_epoch()
    resumed = trainer(tmp_path, augmentation="flip", loader_workers=2)
    resumed.restore(stopped.state())
    assert train(resumed) == expected


def test_a_held_out_part_is_streamed_too(tmp_path):
    run = trainer(tmp_path, selection="holdout")
    train(run)
    assert (len(run.validation), len(run.test)) == (6, 20)
    assert run.result().test_acc is not None


def test_the_classifier_of_a_streamed_run_takes_images_as_others_do(tmp_path):
    source = STREAMED.replace("permute(2, 0, 1)", "permute(2, 0, 1).expand(3, 8, 8)")
    run = trainer(tmp_path, source)
    train(run)
    classifier = load_classifier(run.config, run.best_weights, tmp_path, plugins(source))
    read = [run.test.read(i) for i in range(20)]
    logits = classifier(torch.stack([pixels.permute(1, 2, 0) for pixels, _ in read]))
    correct = logits.argmax(1) == torch.tensor([label for _, label in read])
    assert 100 * correct.double().mean() == run.best


def test_the_hash_of_streamed_data_follows_its_content(tmp_path):
    hashes = [trainer(tmp_path, count=n).data_sha256 for n in (40, 40, 44)]
    assert hashes[0] == hashes[1] != hashes[2]
