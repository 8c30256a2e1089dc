"""A new user's afternoon: the README's example with a folder of images, killed, compared, reported.

It runs from an empty directory, with both engines, torchvision's network and one of the user's own.
"""

import re
import textwrap
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner
from helpers.launch import CURVES, RESULTS, epochs_recorded, query
from PIL import Image, ImageDraw

from ressmooth.cli import main

README = Path(__file__).parents[2] / "README.md"
QUICK = ["--set", "epochs=4", "--set", "seeds=1", "--set", "search.trials=2"]
NETWORK = '''
import torch.nn.functional as F
from torch import nn

import ressmooth


@ressmooth.model
class TinyNet(nn.Module):
    """Two convolutions and a linear layer."""

    def __init__(self, num_classes: int, in_channels: int, width: int = 8):
        super().__init__()
        self.first = nn.Conv2d(in_channels, width, 3, padding=1)
        self.second = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.head = nn.Linear(2 * width, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        x = F.relu(self.second(x))
        return self.head(x.mean((2, 3)))
'''
pytestmark = pytest.mark.slow


def draw_shapes(folder, count=400, size=20):
    """Draw circles, squares and crosses of random colour, size and place."""
    random = Random(0)
    for number in range(count):
        kind = ("circle", "cross", "square")[number % 3]
        image = Image.new("RGB", (size, size), tuple(random.randrange(60) for _ in range(3)))
        draw = ImageDraw.Draw(image)
        left, top, width = random.randrange(6), random.randrange(6), random.randrange(8, 13)
        box = (left, top, left + width, top + width)
        colour = tuple(random.randrange(120, 256) for _ in range(3))
        if kind == "circle":
            draw.ellipse(box, fill=colour)
        elif kind == "square":
            draw.rectangle(box, fill=colour)
        else:
            draw.line(box, fill=colour, width=3)
            draw.line((left, top + width, left + width, top), fill=colour, width=3)
        (folder / kind).mkdir(parents=True, exist_ok=True)
        image.save(folder / kind / f"{number:03d}.png")


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """An empty directory with the images, the README's study and its plug-in."""
    desk = tmp_path_factory.mktemp("desk")
    draw_shapes(desk / "shapes")
    section = README.read_text().partition("## A study, with your own")[2].partition("\n## ")[0]
    assert len(section.splitlines()) <= 25
    code = textwrap.dedent("\n".join(re.findall(r"^ {4}.*|^$", section, re.MULTILINE)))
    study, _, plugin = code.partition("from torch import nn")
    (desk / "mine.toml").write_text(study)
    (desk / "mine.py").write_text(f"from torch import nn{plugin}")
    (desk / "net.py").write_text(NETWORK)
    return desk


def test_the_readmes_example_survives_kills_and_gives_the_same_rows_on_both_engines(
    desk, local_engine, ray_engine
):
    options = ["--plugin", str(desk / "mine.py"), "--workers", "1", *QUICK]
    for at_least in (2, 7):
        launcher = local_engine.start(desk / "mine.toml", desk / "home", *options)
        epochs_recorded(desk / "home", at_least)
        launcher.kill()
        launcher.communicate()
    done = local_engine.launch(desk / "mine.toml", desk / "home", *options)
    assert done.returncode == 0, done.stderr
    whole = ray_engine.launch(desk / "mine.toml", desk / "ray", *options)
    assert whole.returncode == 0, whole.stderr
    assert query(desk / "home", RESULTS) == query(desk / "ray", RESULTS)
    assert query(desk / "home", CURVES) == query(desk / "ray", CURVES)
    assert "smoothed" in done.stdout and "focal" in done.stdout and "SGD" not in done.stdout
    assert query(desk / "home", "SELECT count(*) FROM run WHERE state = 'failed'") == [(0,)]


def test_it_is_compared_and_reported_with_its_own_reference(desk, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "")
    home = ["--home", str(desk / "home")]
    compared = CliRunner().invoke(main, ["compare", "mine", *home])
    assert compared.exit_code == 0 and "SGD" not in compared.output, compared.output
    reported = CliRunner().invoke(main, ["report", "mine", "--out", str(desk / "out"), *home])
    assert reported.exit_code == 0, reported.output
    page = (desk / "out" / "index.html").read_text()
    assert "smoothed" in page and "The plug-in mine.py" in page and "SGD" not in page


def test_a_network_of_their_own_takes_its_place(desk, local_engine):
    options = ["--plugin", str(desk / "mine.py"), "--plugin", str(desk / "net.py")]
    own = ["--set", "model=TinyNet", "--set", "width=4", "--set", "name=own", *QUICK]
    done = local_engine.launch(desk / "mine.toml", desk / "home", *options, *own)
    assert done.returncode == 0, done.stderr
    assert "images:" in done.stdout and "TinyNet" in done.stdout


def test_other_files_under_the_same_path_are_noticed(desk, local_engine):
    before = query(desk / "home", RESULTS)
    (desk / "shapes" / "cross" / "001.png").unlink()
    options = ["--plugin", str(desk / "mine.py"), *QUICK]
    done = local_engine.launch(desk / "mine.toml", desk / "home", *options)
    assert done.returncode == 2 and "its content has changed since run" in done.stderr
    assert query(desk / "home", RESULTS) == before
