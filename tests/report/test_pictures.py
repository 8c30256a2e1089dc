from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from ressmooth.evidence import seeds_to_decide
from ressmooth.report import pictures, style
from ressmooth.smoothing import Laplace, Logistic


def test_both_pictures_of_the_method_show_what_the_loss_computes():
    by_alpha, by_scale = style.picture(*pictures.sigmoids()).axes
    flat = by_scale.lines[0].get_ydata()  # s = 0.25
    assert (flat[0] < flat[-1] < 0.25) and flat[100] == pytest.approx(0.125)
    steep = by_alpha.lines[-1]
    assert steep.get_ydata()[-1] == pytest.approx(1 / (1 + np.exp(-16)))
    for axes, kind in zip(
        style.picture(*pictures.annealings((0.5,), (0.5,))).axes, (Laplace, Logistic), strict=True
    ):
        progress, scale = (np.array(values) for values in axes.lines[0].get_data())
        assert scale == pytest.approx(kind(0.75, 0.5)(torch.from_numpy(progress)).numpy())


def test_pictures_follow_the_pages_colour_and_files_are_on_white():
    svg = style.svg(style.picture(pictures.sigmoids()[0]), "name")
    assert svg == style.svg(style.picture(pictures.sigmoids()[0]), "name")
    shown, file = style.in_page(svg), style.on_white(svg)
    assert shown.startswith("<svg") and style.INK not in shown and "currentColor" in shown
    assert "currentColor" not in file and ElementTree.fromstring(file)[0].get("fill") == "white"


def test_the_picture_of_evidence_shows_what_looks_do():
    by_seeds, by_looks = style.picture(*pictures.evidence()).axes
    nothing, small, large = (line.get_ydata() for line in by_seeds.lines[:3])
    assert nothing[-1] < 1 < small[-1] < large[-1]
    seeds = by_seeds.lines[2].get_xdata()
    assert seeds[np.argmax(large > 20)] == seeds_to_decide(2.0)
    tested, weighed = (line.get_ydata() for line in by_looks.lines[:2])
    assert tested[0] == pytest.approx(5, abs=1) and 20 < tested[-1]
    assert list(weighed[:2]) == [0, 0] and 1 < weighed[-1] < 5  # two or three seeds never decide
