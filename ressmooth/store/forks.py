"""Find the prefix of a run among the runs of its study, and record whose prefix it continues."""

from collections.abc import Collection
from typing import NamedTuple

from sqlalchemy import Connection, case, func, select

from ressmooth.store.database import Part, reading, writing
from ressmooth.store.rows import Attempt, RunRow
from ressmooth.store.runs import change_run
from ressmooth.store.tables import Epoch, Run, Trial

Reached = dict[tuple[str, int], int]  # by prefix and seed


class Donor(NamedTuple):
    """A run that has left a checkpoint in its prefix."""

    run_id: int
    uid: str
    epoch: int
    checkpoint_sha256: str | None


class Forks(Part):
    """Prefixes that runs of a study share."""

    @reading
    def donors(self, connection: Connection, run: RunRow, forks: Collection[int]) -> list[Donor]:
        """Return who may have left a checkpoint at a fork in a run's prefix, longest first.

        Bits are equal only on the same device, with the same number of threads and versions.
        """
        study = select(Trial.study_id).where(Trial.id == run.trial_id).scalar_subquery()
        same = (Run.prefix == run.prefix) & (Run.seed == run.seed) & (Run.id != run.id)
        same &= (Run.device == run.device) & (Run.threads == run.threads)
        query = (
            select(Run.id, Run.uid, Epoch.epoch, Epoch.checkpoint_sha256, Run.versions)
            .join(Epoch, Epoch.run_id == Run.id)
            .join(Trial, Run.trial_id == Trial.id)
            .where(Trial.study_id == study, same)
            .where(Run.data_sha256.is_not_distinct_from(run.data_sha256))
            .where(Epoch.epoch.in_(forks), Epoch.checkpoint_sha256.is_not(None))
            .where(Epoch.epoch <= Run.plain_epochs, Epoch.epoch <= run.plain_epochs)
            .order_by(Epoch.epoch.desc(), Run.id)
        )
        rows = connection.execute(query)
        return [Donor(*row[:4]) for row in rows if row.versions == run.versions]

    @reading
    def reached(self, connection: Connection, study_id: int) -> Reached:
        """Return how many epochs of each prefix are trained."""
        plain = case((Run.last_epoch < Run.plain_epochs, Run.last_epoch), else_=Run.plain_epochs)
        query = (
            select(Run.prefix, Run.seed, func.max(plain))
            .join(Trial, Run.trial_id == Trial.id)
            .where(Trial.study_id == study_id, Run.prefix.is_not(None))
            .group_by(Run.prefix, Run.seed)
        )
        return {(prefix, seed): epochs for prefix, seed, epochs in connection.execute(query)}

    @writing
    def record_fork(self, connection: Connection, attempt: Attempt, donor: Donor | None) -> None:
        """Record whose prefix a run continues, None if it trains its own."""
        run_id, epoch = (donor.run_id, donor.epoch) if donor else (None, None)
        is_new = Run.forked_from.is_distinct_from(run_id) | Run.forked_at.is_distinct_from(epoch)
        forked = {"forked_from": run_id, "forked_at": epoch}
        change_run(connection, attempt.run_id, is_new & (Run.attempt == attempt.number), forked)
