"""The tables of a study."""

import csv

import pandas
import pytest
from helpers import records, specs
from sqlalchemy import event

from ressmooth.formatting import csv_text
from ressmooth.report import frames


def simulate(store, name, seeds=1, arms=None):
    arms = arms or {"sgd": {"method": "mse"}}
    return records.simulate(store, specs.study(arms, seeds=seeds, name=name), lambda config: 90.0)


def test_the_number_of_queries_does_not_grow_with_the_runs(store):
    studies = [simulate(store, f"queries-{seeds}", seeds) for seeds in (1, 6)]
    statements = []

    def count(connection, cursor, statement, *_):
        statements.append(statement)

    event.listen(store.database.engine, "before_cursor_execute", count)
    numbers, rows = [], []
    for study in studies:
        statements.clear()
        rows.append(len(frames.epochs(store, study).records))
        numbers.append(len(statements))
    event.remove(store.database.engine, "before_cursor_execute", count)
    assert rows == [2, 12] and numbers[0] == numbers[1]


def test_epochs_have_the_use_of_a_gpu_as_numbers(store):
    table = frames.epochs(store, simulate(store, "unmeasured")).frame()
    for name in ("gpu_memory_mib", "gpu_utilization_percent", "gpu_power_watts"):
        assert table[name].dtype == float and table[name].isna().all()


def test_what_was_not_compared_is_a_missing_number(store):
    table = frames.comparison(store, simulate(store, "alone")).frame()
    floats = ["evidence", "p", "fixed_n_p", "fixed_n_low", "fixed_n_high"]
    assert {str(table[name].dtype) for name in floats} == {"float64"}
    assert {str(table[n].dtype) for n in ("pairs", "decided_after", "more_seeds")} == {"Int64"}
    assert table[[*floats, "pairs"]].isna().all(axis=None)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-x", "@sum(a1)", "\t=1"])
def test_text_is_no_formula_in_a_spreadsheet(text):
    (row,) = csv.DictReader(csv_text([{"arm": text, "difference": -1.5}]).splitlines())
    assert row == {"arm": f"'{text}", "difference": "-1.5"}


def test_a_list_is_no_formula_in_a_spreadsheet():
    assert csv_text([{"commands": ["=1+1", "x"]}]).splitlines()[1] == "'=1+1 x"


@pytest.mark.parametrize("table", ["runs", "epochs", "trials"])
def test_a_study_without_runs_has_the_columns_of_one_with_runs(store, table):
    full = simulate(store, f"full-{table}")
    store.open_study(specs.study({"sgd": {"method": "mse"}}, name=f"empty-{table}"))
    empty = store.study(f"empty-{table}")
    found = frames.TABLES[table](store, empty).frame()
    expected = frames.TABLES[table](store, full).frame()
    assert found.empty and set(found.columns) == set(expected.columns)


def test_a_parameter_that_is_a_number_in_one_arm_and_text_in_another_fits_parquet(tmp_path):
    rows = [{"param.x": 1}, {"param.x": "auto"}, {"param.x": None}]
    table = frames.Table(lambda: rows, rows)
    table.write_parquet(tmp_path / "t.parquet")
    found = pandas.read_parquet(tmp_path / "t.parquet")["param.x"]
    assert list(found.dropna()) == ["1", "auto"]


@pytest.mark.parametrize("content", [None, b"", b"PAR1 not really PAR1"])
def test_only_our_own_parquet_files_are_ours(tmp_path, content):
    if content is not None:
        (tmp_path / "t.parquet").write_bytes(content)
    assert not frames.is_parquet_export(tmp_path / "t.parquet")
