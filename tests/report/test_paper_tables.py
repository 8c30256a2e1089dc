from helpers import records, specs
from helpers.published import published_figures
from helpers.shown import ARMS, EIGHTH, accuracy

from ressmooth.report.compare import arm_results
from ressmooth.report.page import Report
from ressmooth.report.paper_tables import PaperTables


def test_the_papers_table_contains_our_figures(store, study):
    chosen = arm_results(study, store.winners(study.id))
    published = [
        row for row in published_figures() if row.problem == ("fashion_mnist", "resnet20", 0.125)
    ]
    (table,) = PaperTables(published, chosen, store.trials(study.id)).tables()
    assert table.head == ["sgd 1e-2", "sgd 1e-3", "sgd 1e-4", "sgd 1e-5", "laplace", "logistic"]
    rows = {name: cells for name, cells in table.rows}
    cells = rows["0.125, max"]
    assert [cell.paper for cell in cells] == ["88.14", "89.79", "89.00", "88.62", "90.12", "90.18"]
    assert [cell.ours for cell in cells][:3] == ["88.00 ± 0.37", "89.00 ± 0.37", "–"]
    assert [cell.n for cell in cells] == [5, 5, 0, 0, 5, 5]
    assert [cell.is_best for cell in cells] == [False] * 4 + [True, False]
    assert rows["0.125, mean"][1].ours == "88.00 ± 0.37"


def test_the_papers_table_marks_seeds_used_for_selection(store):
    def lucky(config):  # at 1e-2 the search was lucky, but not enough
        return (
            88.9
            if (config["method"], config["weight_decay"]) == ("mse", 1e-2)
            else accuracy(config)
        )

    spec = specs.study({"sgd": ARMS["sgd"]}, seeds=2, confirm=2, name="two-kinds", **EIGHTH)
    report = Report(store, records.simulate(store, spec, lucky))
    (table,) = report.paper_tables
    cells = dict(table.rows)["0.125, max"][:2]
    assert [(cell.has_selected, cell.is_best) for cell in cells] == [(True, False), (False, True)]


def test_no_cell_of_the_papers_table_is_best_in_a_tie(store):
    spec = specs.study({"sgd": ARMS["sgd"]}, name="level", **EIGHTH)
    (table,) = Report(store, records.simulate(store, spec, lambda config: 88.0)).paper_tables
    cells = dict(table.rows)["0.125, max"]
    assert [cell.ours for cell in cells[:2]] == ["88.00", "88.00"]
    assert not any(cell.is_best for cell in cells)


def test_a_holdout_is_compared_with_the_papers_mean(store):
    held_out = {**EIGHTH, "selection": "holdout"}
    spec = specs.study({"sgd": ARMS["sgd"]}, name="beside", **held_out)
    (table,) = Report(store, records.simulate(store, spec, accuracy)).paper_tables
    rows = dict(table.rows)
    assert rows["0.125, mean"][1].ours == "87.00" and rows["0.125, max"][1].ours == "–"


def test_conditions_have_their_own_rows_in_the_papers_table(store):
    settings = {key: value for key, value in EIGHTH.items() if key != "epochs"}
    spec = specs.study(
        {"sgd": {"method": "mse"}}, name="axes", grid={"epochs": [2, 48]}, **settings
    )
    study = records.simulate(store, spec, lambda config: 40.0 + config["epochs"])
    (table,) = Report(store, study).paper_tables
    found = {name: cells[1].ours for name, cells in table.rows if name.endswith("max")}
    assert found == {"0.125, epochs 2, max": "42.00", "0.125, epochs 48, max": "88.00"}
