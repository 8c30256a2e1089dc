"""`ressmooth export --format archive` and `ressmooth import`."""

import subprocess
import sys

import pytest
from helpers.commands import run

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


@pytest.fixture(scope="module")
def archive(home, tmp_path_factory):
    path = tmp_path_factory.mktemp("archive") / "tiny.zip"
    done = run("export", "tiny", "--format", "archive", "--out", str(path), home=home)
    assert done.exit_code == 0 and f"ressmooth import {path}" in done.output, done.output
    return path


def test_an_archive_shows_the_same_comparison_in_another_home(home, archive, tmp_path):
    done = run("import", str(archive), home=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert f"tiny: 2 runs added; see: ressmooth show tiny --home {tmp_path}" in done.output
    compare = ("compare", "tiny", "--format", "csv")
    assert run(*compare, home=tmp_path).output == run(*compare, home=home).output
    again = run("import", str(archive), home=tmp_path)
    assert "tiny: 0 runs added, 2 here already" in again.output


def test_an_archive_replaces_only_another_archive(home, archive, tmp_path):
    foreign = tmp_path / "thesis.zip"
    foreign.write_text("years of work")
    out = ("export", "tiny", "--format", "archive", "--out")
    refused = run(*out, str(foreign), home=home)
    assert refused.exit_code == 2 and foreign.read_text() == "years of work"
    assert run(*out, str(archive), home=home).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "name a FILE to import, or add --bundled"),
        (("missing.zip",), 2, "missing.zip: No such file or directory"),
        ((__file__,), 5, "damaged or not an archive of ressmooth"),
    ],
)
def test_errors_of_import_create_nothing(tmp_path, arguments, code, message):
    result = run("import", *arguments, home=tmp_path / "new")
    assert result.exit_code == code and message in result.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "options", [("tiny", "tiny2"), ("tiny", "--weights")], ids=["two studies", "weights"]
)
def test_other_formats_take_one_study_and_no_weights(home, options):
    result = run("export", *options, home=home)
    assert result.exit_code == 2 and "only with --format archive" in result.stderr


def test_the_bundled_results_are_imported_without_loading_heavy_packages(tmp_path):
    script = (
        "import sys; from click.testing import CliRunner; from ressmooth.cli import main\n"
        f"result = CliRunner().invoke(main, ['import', '--bundled', '--home', {str(tmp_path)!r}])\n"
        "print(result.output, [m for m in ('torch', 'optuna', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "fashion-small: 61 runs added" in done.stdout and done.stdout.endswith(" []\n"), done
    compared = run("compare", "fashion-small", home=tmp_path).output
    assert "undecided after 5 seeds" in compared
