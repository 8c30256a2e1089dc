"""`ressmooth plot`."""

import pytest
from click.testing import CliRunner

from ressmooth.cli import main


@pytest.mark.parametrize("what", ["annealing", "sigmoid"])
@pytest.mark.parametrize(
    "name, magic", [("x.png", b"\x89PNG"), ("x.svg", b"<?xml"), ("x.pdf", b"%PDF")]
)
def test_plot_draws_the_method(what, name, magic, tmp_path):
    out = tmp_path / "new" / name
    result = CliRunner().invoke(main, ["plot", what, "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_bytes().startswith(magic)


def test_plot_refuses_an_unknown_file_type(tmp_path):
    result = CliRunner().invoke(main, ["plot", "sigmoid", "--out", str(tmp_path / "x.gif")])
    assert result.exit_code == 2 and "the file name must end in .png, .svg or .pdf" in result.output
    assert list(tmp_path.iterdir()) == []


def test_plot_never_replaces_what_ressmooth_did_not_write(tmp_path):
    for suffix in ("png", "svg", "pdf"):
        out = tmp_path / f"x.{suffix}"
        out.write_text("mine")
        plot = ["plot", "sigmoid", "--out", str(out)]
        assert CliRunner().invoke(main, plot).exit_code == 2 and out.read_text() == "mine"
        assert CliRunner().invoke(main, [*plot, "--force"]).exit_code == 0
        assert CliRunner().invoke(main, plot).exit_code == 0
