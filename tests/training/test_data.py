import pytest
import torch
import torch.nn.functional as F

from ressmooth.training.data import (
    AUGMENTATIONS,
    Batches,
    Dataset,
    Images,
    Normaliser,
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


def batches(images, size, augmentation="none", seed=0, **options):
    return Batches(images, unnormalised, size, augmentation, seed, **options)


def epoch_numbers(images, size, epoch=1, seed=0):
    return [numbers(pixels) for pixels, _ in batches(images, size, seed=seed).epoch(epoch)]


@pytest.fixture
def dataset():
    return Dataset(numbered(1000), numbered(200, start=5000), 10)


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


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
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


def crops_and_flips(image, padding, is_flipping):
    """Return every (top, left, flip) of a zero-padded [H, W, C] image, by slicing."""
    height, width = image.shape[:2]
    padded = F.pad(image, (0, 0, padding, padding, padding, padding))
    offsets = range(2 * padding + 1)
    crops = [padded[t : t + height, x : x + width] for t in offsets for x in offsets]
    return torch.stack(crops + [crop.flip(1) for crop in crops if is_flipping])


@pytest.mark.parametrize(
    "augmentation, padding",
    [("none", 0), ("flip", 0), ("crop", 4), ("crop-flip", 4), ("crop-flip", 1)],
)
def test_every_crop_and_flip_occurs_and_nothing_else(augmentation, padding):
    images = distinct()
    is_flipping = augmentation.endswith("flip")
    possible = [crops_and_flips(image, padding, is_flipping) for image in images.pixels]
    occurred = torch.zeros(len(possible[0]), dtype=torch.long)
    training = batches(images, 8, augmentation, crop_padding=padding)
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


@pytest.mark.parametrize("augmentation", AUGMENTATIONS)
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
    with pytest.raises(ValueError, match="'flop'.*'flip'.*crop, crop-flip, flip, none"):
        batches(numbered(4), 2, "flop")


@pytest.mark.parametrize("drop_last, sizes", [(True, [8, 8]), (False, [8, 8, 4])])
def test_the_last_batch_is_kept_if_asked_for(drop_last, sizes):
    training = batches(numbered(20), 8, drop_last=drop_last)
    labels = [labels for _, labels in training.epoch(1)]
    assert [len(each) for each in labels] == sizes and len(training) == len(sizes)
    assert len(set(torch.cat(labels).tolist())) == sum(sizes) == training.samples


def test_padding_surrounds_normalised_images_with_black():
    pixels = torch.randint(256, (20, 6, 5, 3), generator=torch.Generator().manual_seed(0))
    images = Images(pixels.to(torch.uint8), torch.arange(20))
    plain, padded = Normaliser(images)(images.pixels), Normaliser(images, 2)(images.pixels)
    assert padded.shape == (20, 3, 10, 9) and torch.equal(padded[:, :, 2:-2, 2:-2], plain)
    black = Normaliser(images)(torch.zeros_like(images.pixels))[:, :, :1, :1]
    border = torch.ones(10, 9, dtype=torch.bool)
    border[2:-2, 2:-2] = False
    assert torch.equal(padded[:, :, border], black[..., 0].expand_as(padded[:, :, border]))
