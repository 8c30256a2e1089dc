"""`ressmooth export`: tables, Optuna's database, files that it replaces."""

import csv
import json

import optuna
import pandas
import pytest
from helpers.commands import run
from helpers.large import fill, large_spec

from ressmooth.report import frames
from ressmooth.store import default_url, open_store

pytestmark = pytest.mark.usefixtures("mlflow_is_unreachable")


def test_export_writes_every_epoch_as_csv_and_as_json(home):
    rows = list(csv.DictReader(run("export", "tiny", home=home).output.splitlines()))
    assert [(row["arm"], row["epoch"]) for row in rows] == [("sgd", "1"), ("sgd", "2")]
    same = json.loads(run("export", "tiny", "--format", "json", home=home).output)
    assert [row["val_acc"] for row in same] == [float(row["val_acc"]) for row in rows]


def test_export_to_optuna_has_a_study_per_arm_with_every_finished_trial(home, tmp_path):
    done = run("export", "tiny", "--format", "optuna", "--out", str(tmp_path / "o.db"), home=home)
    assert done.exit_code == 0, done.stderr
    storage = f"sqlite:///{tmp_path}/o.db"
    (good,) = optuna.load_study(study_name="tiny sgd", storage=storage).trials
    (bad,) = optuna.load_study(study_name="tiny bad", storage=storage).trials
    rows = list(csv.DictReader(run("export", "tiny", home=home).output.splitlines()))
    curve = {int(row["epoch"]): float(row["val_acc"]) for row in rows}
    assert good.intermediate_values == curve and good.value == max(curve.values())
    assert bad.state.name == "FAIL" and bad.value is None


def test_the_deployment_shows_an_export_with_its_own_command(home, tmp_path, monkeypatch):
    monkeypatch.setenv("RESSMOOTH_DASHBOARD", "docker compose --profile dashboard up -d")
    shown, other = home / "optuna.db", tmp_path / "o.db"  # its dashboard shows the first only
    done = run(*EXPORT, str(shown), home=home).output
    assert done == f"wrote {shown}; open it with: docker compose --profile dashboard up -d\n"
    assert "open it with: optuna-dashboard sqlite:" in run(*EXPORT, str(other), home=home).output


def test_an_export_replaces_an_earlier_one_and_leaves_no_other_file(home, tmp_path):
    for _ in range(2):
        run("export", "tiny", "--format", "optuna", "--out", str(tmp_path / "o.db"), home=home)
    assert [path.name for path in tmp_path.iterdir()] == ["o.db"]
    assert len(optuna.get_all_study_summaries(f"sqlite:///{tmp_path}/o.db")) == 2


@pytest.mark.parametrize(
    "form, out, message",
    [
        ("optuna", (), "--format optuna: needs --out FILE"),
        ("parquet", (), "--format parquet: needs --out FILE"),
        ("archive", (), "--format archive: needs --out FILE"),
        ("csv", ("--out", "x"), "csv and json are printed, so redirect them: > x"),
        ("mlflow", ("--out", "x"), "--out x: only with --format parquet, optuna, archive"),
    ],
)
def test_out_is_required_for_files_and_for_no_other_format(home, form, out, message):
    result = run("export", "tiny", "--format", form, *out, home=home)
    assert result.exit_code == 2 and message in result.stderr


@pytest.mark.parametrize("table", ["runs", "epochs", "trials", "comparison"])
def test_every_table_is_the_same_in_every_format(home, tmp_path, table):
    out = tmp_path / "t.parquet"
    options = ("export", "tiny", "--table", table)
    rows = list(csv.DictReader(run(*options, home=home).output.splitlines()))
    same = json.loads(run(*options, "--format", "json", home=home).output)
    done = run(*options, "--format", "parquet", "--out", str(out), home=home)
    assert done.exit_code == 0, done.stderr
    frame = pandas.read_parquet(out)
    assert list(rows[0]) == list(frame.columns) and set(same[0]) <= set(frame.columns)
    assert [row["arm"] for row in rows] == list(frame.arm) == [row["arm"] for row in same]


def test_the_table_of_runs_has_results_and_errors(home):
    good, bad = csv.DictReader(
        run("export", "tiny", "--table", "runs", home=home).output.split("\n")
    )
    assert float(good["max_acc"]) > 0 and good["error"] == "" and float(good["best_nll"]) > 0
    assert bad["max_acc"] == "" and bad["error"] == "diverged at epoch 1"


def test_a_table_is_refused_where_there_is_none(home, tmp_path):
    out = ("--format", "optuna", "--out", str(tmp_path / "o.db"))
    result = run("export", "tiny", "--table", "runs", *out, home=home)
    assert result.exit_code == 2 and "only with --format csv, json or parquet" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_models_are_not_logged_to_an_mlflow_that_does_not_answer(home):
    result = run("export", "tiny", "--format", "mlflow", home=home)
    assert result.exit_code == 4 and "error: MLflow at http://127.0.0.1:9" in result.stderr


def test_parquet_replaces_only_what_ressmooth_wrote(home, tmp_path):
    out = tmp_path / "t.parquet"
    export = ("export", "tiny", "--format", "parquet", "--out", str(out))
    pandas.DataFrame({"mine": [1]}).to_parquet(out)
    before = out.read_bytes()
    refused = run(*export, home=home)
    assert refused.exit_code == 2 and "was not written by ressmooth" in refused.stderr
    assert out.read_bytes() == before
    assert run(*export, "--force", home=home).exit_code == 0
    assert run(*export, "--table", "runs", home=home).exit_code == 0  # now it is ours
    assert list(pandas.read_parquet(out).state) == ["complete", "failed"]


EXPORT = ("export", "tiny", "--format", "optuna", "--out")


@pytest.mark.parametrize("foreign", ["text", "Optuna database"])
def test_export_never_replaces_what_ressmooth_did_not_write(home, tmp_path, foreign):
    out = tmp_path / "o.db"
    out.write_text("mine")
    if foreign != "text":
        out.unlink()
        optuna.create_study(storage=f"sqlite:///{out}")
    before = out.read_bytes()
    refused = run(*EXPORT, str(out), home=home)
    assert refused.exit_code == 2
    assert (
        "exists and was not written by ressmooth" in refused.stderr and "--force" in refused.stderr
    )
    assert out.read_bytes() == before
    assert run(*EXPORT, str(out), "--force", home=home).exit_code == 0
    assert run(*EXPORT, str(out), home=home).exit_code == 0  # now it is ours


@pytest.mark.parametrize("name", ["results.db", "results.db-journal", "runs/o.db"])
def test_no_command_replaces_files_of_the_home(home, name):
    before = (home / "results.db").read_bytes()
    refused = run(*EXPORT, str(home / name), "--force", home=home)
    assert refused.exit_code == 2 and "belongs to the home" in refused.stderr
    assert (home / "results.db").read_bytes() == before and not (home / "runs/o.db").exists()


@pytest.mark.parametrize("table", ["runs", "epochs", "trials"])
def test_export_reads_large_studies_page_by_page(tmp_path, table):
    """Rows and columns are those of all trials, also where arms have other parameters."""
    store = open_store(default_url(tmp_path))
    fill(store, large_spec(1003), 1003)
    epochs = store.database.engine.connect().exec_driver_sql("SELECT count(*) FROM epoch").scalar()
    streamed = frames.TABLES[table](store, store.study("large"))
    lines = streamed.csv()
    assert next(lines).startswith("study,arm,trial")  # before the other pages are read
    rows = list(
        csv.DictReader(run("export", "large", "--table", table, home=tmp_path).output.splitlines())
    )
    assert len(rows) == (epochs if table == "epochs" else 1003)
    assert [int(row["trial"]) for row in rows] == sorted(int(row["trial"]) for row in rows)
    assert {row["arm"] for row in rows if row["param.b"]} == {"laplace"}
    assert all(row["param.lr"] for row in rows)
    same = json.loads(
        run("export", "large", "--table", table, "--format", "json", home=tmp_path).output
    )
    assert [row["trial"] for row in same] == [int(row["trial"]) for row in rows]
    store.close()
