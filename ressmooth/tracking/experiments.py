"""The MLflow experiments of studies. They are found by the study's uid, not by their names."""

from typing import TYPE_CHECKING

from ressmooth.formatting import plain_markdown
from ressmooth.spec import read_stored
from ressmooth.store import StudyRow
from ressmooth.tracking import STUDY_TAG, view

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment


def find(client: "MlflowClient", study: StudyRow) -> "Experiment | None":
    """Return the experiment of a study, also a deleted one."""
    from mlflow.entities import ViewType

    of_study = f"tags.`{STUDY_TAG}` = '{study.uid}'"
    found = client.search_experiments(ViewType.ALL, filter_string=of_study)
    return found[0] if found else None


def restore_or_create(client: "MlflowClient", study: StudyRow, location: str | None) -> str:
    """Return the id of the study's experiment, which then has the study's name."""
    found = find(client, study)
    if found is None:
        tags = {
            STUDY_TAG: study.uid,
            "mlflow.note.content": plain_markdown(study.spec["description"]),
        }
        tags[view.TAG] = view.prepare(read_stored(study.spec))
        return str(client.create_experiment(_free_name(client, study), location, tags))
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    if found.name not in _names(study):
        client.rename_experiment(found.experiment_id, _free_name(client, study))
    return str(found.experiment_id)


def delete(client: "MlflowClient", study: StudyRow) -> None:
    """Delete the experiment of a study, and free its name, which MLflow would keep reserved."""
    found = find(client, study)
    if found is not None and found.lifecycle_stage == "active":
        client.rename_experiment(found.experiment_id, f"{study.name}-{study.uid}-deleted")
        client.delete_experiment(found.experiment_id)


def _names(study: StudyRow) -> tuple[str, str]:
    """Return the study's name, and the one for an MLflow in which that is taken."""
    return study.name, f"{study.name}-{study.uid[:8]}"


def _free_name(client: "MlflowClient", study: StudyRow) -> str:
    name, other = _names(study)
    return name if client.get_experiment_by_name(name) is None else other
