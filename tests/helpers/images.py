"""Folders of small images, made for tests."""

import numpy as np
from PIL import Image


def draw_folder(folder, classes, size=12, mode="RGB"):
    """Draw `classes` (name -> number of images) of noise around a brightness of their own."""
    generator = np.random.default_rng(0)
    for position, (name, number) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True, exist_ok=True)
        for index in range(number):
            noise = generator.integers(0, 40, (size, size, 3))
            pixels = (noise + 60 * (position + 1)).astype(np.uint8)
            Image.fromarray(pixels).convert(mode).save(folder / name / f"{index}.png")
    return folder
