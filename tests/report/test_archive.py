"""Archives of studies: the same results in another home, merged and never overwritten."""

import json
import zipfile
from dataclasses import replace

import pytest
from helpers.records import ENVIRONMENT, epoch, open_study, runs_of, simulate, train_all
from helpers.specs import study as make_spec
from sqlalchemy import text

from ressmooth.errors import ConfigError, SchemaError, StoreCorrupt, StudyBusy
from ressmooth.report.archive import import_archive, is_archive, read_archive, write_archive
from ressmooth.report.page import Report, write
from ressmooth.search.planner import Planner
from ressmooth.store import Holder, default_url, open_store

ARMS = {
    "sgd": {"method": "mse"},
    "laplace": {"method": "smoothing", "distribution": "laplace", "b": {"grid": [0.3, 0.5]}},
}


def accuracy(config):
    return 80.0 + config["seed"] + (config["b"] if config["method"] == "smoothing" else 0)


@pytest.fixture
def place(tmp_path):
    """Return the Store of a home, and the home."""
    opened = []

    def place(name):
        store = open_store(default_url(tmp_path / name))
        opened.append(store)
        return store, tmp_path / name

    for name in ("here", "there", "elsewhere"):
        (tmp_path / name).mkdir()
    yield place
    for store in opened:
        store.close()


@pytest.fixture
def archived(place, tmp_path):
    """Write a study of another home into an archive."""

    def archived(name="there", arms=ARMS, seeds=2, value=accuracy, **options):
        store, home = place(name)
        simulate(store, make_spec(arms, seeds=seeds, name="mine"), value)
        path = tmp_path / f"{name}.zip"
        write_archive(store, ["mine"], path, home, **options)
        return path

    return archived


def take(place, path, name="here"):
    store, home = place(name)
    return list(import_archive(store, read_archive(path), home))


def content(store, name="mine"):
    return content_of(store.archived(name))


def content_of(archived):
    """Return all rows of a study without their ids."""
    runs = {
        (trial.arm, trial.branch, trial.number_in_branch, run.seed): (
            replace(run, id=0, trial_id=0, forked_from=None),
            archived.curves.get(run.id),
            replace(trial, id=0, study_id=0, confirms=None, runs=[]),
        )
        for trial in archived.trials
        for run in trial.runs
    }
    return replace(archived.study, id=0), runs


def test_an_imported_study_has_the_same_rows_and_the_same_report(place, archived, tmp_path):
    (imported,) = take(place, archived())
    assert len(imported.added) == 6 and imported.kept == 0
    (here, _), (there, _) = place("here"), place("there")
    assert content(here) == content(there)
    for store, name in ((here, "a"), (there, "b")):
        write(Report(store, store.study("mine")), tmp_path / name)
    pages = [(tmp_path / name / "index.html").read_text() for name in ("a", "b")]
    assert pages[0] == pages[1] == read_archive(tmp_path / "there.zip").report("mine")


def test_a_run_still_continues_the_prefix_of_the_same_run(place, tmp_path):
    """The donor has another id here, because another study came first."""
    (here, _), (there, home) = place("here"), place("there")
    open_study(here, "first")
    study_id = open_study(there, "mine")
    train_all(there, study_id, home)
    donor, heir = runs_of(there, study_id)[0], runs_of(there, study_id)[-1]
    with there.database.engine.begin() as connection:
        values = {"donor": donor.id, "heir": heir.id}
        statement = "UPDATE run SET forked_from = :donor, forked_at = 2 WHERE id = :heir"
        connection.execute(text(statement), values)
    write_archive(there, ["mine"], tmp_path / "a.zip", home)
    take(place, tmp_path / "a.zip")
    found = {run.uid: run for run in runs_of(here, here.study("mine").id)}
    assert found[donor.uid].id != donor.id
    assert found[heir.uid].forked_from == found[donor.uid].id and found[heir.uid].forked_at == 2
    assert [run.uid for run in found.values() if run.forked_from] == [heir.uid]


def test_runs_of_several_rounds_keep_their_ids_in_a_new_home(place, archived, tmp_path):
    """A race adds seeds to older trials, so that ids are not in the order of trials."""
    there, home = place("there")
    study_id = open_study(there, "mine", seeds=1)
    for trial in there.trials(study_id):
        there.add_runs({trial.id: [{**trial.runs[0].config, "seed": 1}]})
    write_archive(there, ["mine"], tmp_path / "a.zip", home)
    take(place, tmp_path / "a.zip")
    here, _ = place("here")
    assert {run.uid: run.id for run in runs_of(here, here.study("mine").id)} == {
        run.uid: run.id for run in runs_of(there, study_id)
    }


def test_an_archive_is_imported_into_either_database(store, archived, tmp_path):
    archive = read_archive(archived())
    for added in (6, 0):
        (imported,) = import_archive(store, archive, tmp_path)
        assert len(imported.added) == added
    assert content(store) == content_of(archive.rows("mine"))


def test_a_second_import_changes_nothing(place, archived):
    path = archived()
    take(place, path)
    store, _ = place("here")
    before = content(store), store.count_pending(None)
    (again,) = take(place, path)
    assert again.added == {} and again.kept == 6
    assert (content(store), store.count_pending(None)) == before


def test_the_same_rows_give_the_same_file(place, archived, tmp_path):
    path = archived()
    store, home = place("there")
    write_archive(store, ["mine"], tmp_path / "again.zip", home)
    assert path.read_bytes() == (tmp_path / "again.zip").read_bytes() and is_archive(path)


def test_mlflow_hears_of_every_imported_run_and_epoch(place, archived):
    take(place, archived())
    events = [event.kind for event in place("here")[0].pending(None, 1000)]
    assert events.count("run") == 6 and events.count("epoch") == 12 and "study" in events


def test_seeds_of_two_machines_become_one_study(place, archived):
    """Here seed 0 was trained, there also seed 1."""
    here, _ = place("here")
    simulate(here, make_spec(ARMS, seeds=1, name="mine"), accuracy)
    ours = {run.seed: run for run in runs_of(here, here.study("mine").id)}
    (imported,) = take(place, archived(seeds=2))
    assert len(imported.added) == 3 and imported.kept == 3 and imported.differing == []
    trials = here.trials(here.study("mine").id)
    assert all([run.seed for run in trial.runs] == [0, 1] for trial in trials)
    assert [trial.state for trial in trials] == ["complete"] * 3
    assert [trial.value for trial in trials] == [80.5, 80.8, 81.0]  # means over both seeds
    assert ours[0] in trials[-1].runs
    spec = make_spec(ARMS, seeds=2, name="mine")
    assert Planner(here, here.study("mine").id, spec).next() is None  # nothing is left to train


def test_a_waiting_run_is_filled_and_a_begun_one_is_kept(place, archived):
    here, _ = place("here")
    study_id = here.open_study(make_spec(ARMS, seeds=2, name="mine"))
    planner = Planner(here, study_id, make_spec(ARMS, seeds=2, name="mine"))
    begun = planner.next()
    here.record_epoch(here.claim(begun.id, ENVIRONMENT), epoch(1), None)
    (imported,) = take(place, archived())
    states = {(run.trial_id, run.seed): run.state for run in runs_of(here, study_id)}
    assert states.pop((begun.trial_id, begun.seed)) == "running"
    assert set(states.values()) == {"complete"} and imported.kept == 1


def test_unfinished_runs_are_imported_as_waiting_and_can_be_trained(place, tmp_path):
    there, home = place("there")
    study_id = open_study(there, "mine")
    first = runs_of(there, study_id)[0]
    there.record_epoch(there.claim(first.id, ENVIRONMENT), epoch(1), "ab" * 32)
    write_archive(there, ["mine"], tmp_path / "a.zip", home)
    take(place, tmp_path / "a.zip")
    here, _ = place("here")
    study = here.study("mine")
    assert {(run.state, run.last_epoch) for run in runs_of(here, study.id)} == {("waiting", 0)}
    assert here.archived("mine").curves == {} and study.held_by is None


def trained(store, home, sha256):
    for run in runs_of(store, open_study(store, "mine", seeds=1)):
        attempt = store.claim(run.id, {**ENVIRONMENT, "host": home.name})
        store.record_epoch(attempt, epoch(1), None)
        store.finish_run(attempt, "complete", max_acc=90.0, weights_sha256=sha256)


def test_runs_that_differ_are_both_kept_and_named(place, tmp_path):
    (here, home), (there, other) = place("here"), place("there")
    trained(here, home, "aa" * 32)
    trained(there, other, "bb" * 32)
    before = content(here)
    write_archive(there, ["mine"], tmp_path / "a.zip", other)
    (imported,) = take(place, tmp_path / "a.zip")
    assert imported.name == "mine-imported" and len(imported.added) == 3
    assert imported.differing[1:] == [
        "laplace (b=0.3), seed 0: 90.00 % on here, 90.00 % in the archive on there",
        "laplace (b=0.5), seed 0: 90.00 % on here, 90.00 % in the archive on there",
    ]
    assert content(here) == before
    apart = here.study("mine-imported")
    assert apart.spec["name"] == "mine-imported"
    assert {run.weights_sha256 for run in runs_of(here, apart.id)} == {"bb" * 32}
    (again,) = take(place, tmp_path / "a.zip")  # finds the study that it has set apart
    assert again.name == "mine-imported" and again.added == {}
    assert [study.name for study in here.studies()] == ["mine", "mine-imported"]


def test_another_study_of_the_same_name_is_refused_and_nothing_is_written(place, archived):
    here, _ = place("here")
    simulate(here, make_spec(ARMS, seeds=1, name="mine", epochs=7), accuracy)
    before = content(here)
    with pytest.raises(ConfigError, match="epochs was 7, is 3"):
        take(place, archived())
    assert content(here) == before


def test_a_study_that_is_running_is_left_alone(place, archived):
    here, _ = place("here")
    study_id = open_study(here, "mine")
    here.acquire(study_id, Holder.here())
    with pytest.raises(StudyBusy):
        take(place, archived())


def test_weights_travel_if_asked_for(place, tmp_path):
    there, home = place("there")
    study_id = open_study(there, "mine")
    train_all(there, study_id, home)
    write_archive(there, ["mine"], tmp_path / "a.zip", home, weights=True)
    take(place, tmp_path / "a.zip")
    for run in runs_of(there, study_id):
        file = place("here")[1] / "runs" / run.uid / "best.safetensors"
        assert file.read_bytes() == b"weights of " + run.uid.encode()


def rewritten(path, **changes):
    """Rewrite members of an archive, each by a function of its content."""
    other = path.with_name("changed.zip")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(other, "w") as new:
        for name in old.namelist():
            change = changes.get(name.rpartition("/")[2].partition(".")[0], lambda content: content)
            new.writestr(name, change(old.read(name)))
    return other


def in_manifest(**values):
    return lambda content: json.dumps({**json.loads(content), **values})


@pytest.mark.parametrize("change", [{"version": 2}, {"schema": "9999"}], ids=str)
def test_an_archive_of_a_newer_program_is_refused(place, archived, change):
    with pytest.raises(SchemaError, match="newer ressmooth"):
        take(place, rewritten(archived(), manifest=in_manifest(**change)))


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def replace_by_text(path):
    path.write_text("no archive")


@pytest.mark.parametrize("damage", [cut, flip, replace_by_text])
def test_a_damaged_archive_is_refused_before_anything_is_created(archived, damage):
    path = archived()
    damage(path)
    with pytest.raises(StoreCorrupt, match="damaged or not an archive"):
        read_archive(path)


def test_a_member_that_does_not_have_its_hash_is_refused(archived):
    changed = rewritten(archived(), study=lambda content: content.replace(b"complete", b"failed"))
    with pytest.raises(StoreCorrupt, match="mine/study.json has another SHA-256"):
        read_archive(changed)


def test_rows_that_name_files_elsewhere_are_refused(place, archived):
    archive = read_archive(archived())
    rows = json.loads(archive.members["mine/study.json"])
    rows["trials"][0]["runs"][0]["uid"] = "../../etc"
    archive.members["mine/study.json"] = json.dumps(rows).encode()
    with pytest.raises(StoreCorrupt):
        list(import_archive(*(place("here")[0], archive, place("here")[1])))
    assert place("here")[0].studies() == []


def test_a_renamed_study_is_found_again(place, archived):
    path = archived()
    take(place, path)
    here, _ = place("here")
    here.rename_study(here.study("mine").id, "other")
    (again,) = take(place, path)
    assert again.name == "other" and again.added == {} and len(here.studies()) == 1
