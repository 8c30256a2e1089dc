"""GPUs of a cluster that break: count the workers that they lose, and let no run use them again.

Ray chooses a run's GPU when it reserves its resources, and gives the GPU to nobody else as long as
that reservation, a placement group, exists. So a GPU is retired by keeping the reservation of the
worker that it lost.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import ray
from ray.air.execution import PlacementGroupResourceManager
from ray.util import get_current_placement_group, remove_placement_group

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

    from ressmooth.engines.scheduler import ActiveStudy

Gpu = tuple[str, tuple[str, ...]]  # node, names of its GPUs

ANSWER = 5.0  # seconds; a worker answers before it begins to train


@dataclass(frozen=True)
class Place:
    """Where a worker is."""

    node: str  # Ray's id
    host: str
    gpus: tuple[str, ...]  # as in CUDA_VISIBLE_DEVICES; empty on a CPU
    reservation: "PlacementGroup"

    def __str__(self) -> str:
        return f"GPU {', '.join(self.gpus)} of {self.host}"

    @property
    def gpu(self) -> Gpu:
        return self.node, self.gpus


def this_place() -> Place:
    """Return where this worker is."""
    context = ray.get_runtime_context()
    gpus, reservation = context.get_accelerator_ids()["GPU"], get_current_placement_group()
    assert reservation is not None  # Tune makes one for every worker
    return Place(context.get_node_id(), os.uname().nodename, tuple(gpus), reservation)


@dataclass(frozen=True)
class Kept:
    """Why a place is not used."""

    place: Place
    run_id: int | None = None  # that shall be retried elsewhere; None: for good
    study: "ActiveStudy | None" = None  # of that run


class Reservations(PlacementGroupResourceManager):
    """Reserves what workers need as Tune's own class does, but does not free what is kept."""

    # of the class, because Tune creates the object
    kept: ClassVar[dict["PlacementGroup", Kept]] = {}

    def __init__(self, update_interval_s: float = 0.1) -> None:
        super().__init__(update_interval_s)
        self.ended: list[Any] = []

    def free_resources(self, acquired_resource: Any) -> None:
        self.ended.append(acquired_resource)  # not yet: the engine hears of a death only after this

    def get_resource_futures(self) -> Any:
        """Called before Tune waits for its next event."""
        for resource in self.ended:
            group = resource.placement_group
            if group in self.kept:
                self._acquired_pgs.remove(group)
                self._pg_to_request.pop(group)
            else:
                super().free_resources(resource)
        self.ended.clear()
        return super().get_resource_futures()


class GpuRecord:
    """What the launcher knows of the GPUs of its runs."""

    def __init__(self) -> None:
        self.kept = Reservations.kept
        self.asked: dict[str, Any] = {}  # futures of places, by Ray's trial id
        # runs whose worker died before it recorded an epoch
        self.strikes: defaultdict[Gpu, set[int]] = defaultdict(set)

    def started(self, trial: str, worker: Any) -> None:
        self.asked[trial] = worker.place.remote()

    def place(self, trial: str) -> Place | None:
        """Return where a trial is executed, None on a CPU or if its worker could not tell."""
        with suppress(KeyError, ray.exceptions.RayError):
            place: Place = ray.get(self.asked[trial], timeout=ANSWER)
            return place if place.gpus else None
        return None

    def left(self, trial: str) -> Place | None:
        """Return where a trial was executed that has ended."""
        place = self.place(trial)
        self.asked.pop(trial, None)
        return place

    def strike(self, place: Place, run_id: int) -> int:
        """Note that a GPU lost a run's worker. Return how many runs have lost theirs there."""
        self.strikes[place.gpu].add(run_id)
        return len(self.strikes[place.gpu])

    def works(self, trial: str, run_id: int) -> bool:
        """Note that a run trains. Return whether places can be used again because of that."""
        if not self.strikes:
            return False
        if (place := self.place(trial)) is None:
            return False
        self.strikes.pop(place.gpu, None)
        return self._free(lambda kept: kept.run_id == run_id or kept.place.gpu == place.gpu)

    def ended(self, run_id: int) -> bool:
        """Note that a run is not retried. Return whether places can be used again."""
        return self._free(lambda kept: kept.run_id == run_id)

    def free_all(self) -> bool:
        """Free the places that are kept until runs train elsewhere. Return whether there were."""
        return self._free(lambda kept: kept.run_id is not None)

    def clean(self, nodes: Collection[str], studies: Collection["ActiveStudy"]) -> None:
        """Free what no node or study needs. Ray would move a reservation to another node."""
        gone = [kept for kept in self.kept.values() if kept.study and kept.study not in studies]
        self._free(lambda kept: kept in gone or kept.place.node not in nodes)

    def _free(self, is_free: Callable[[Kept], bool]) -> bool:
        free = [group for group, kept in self.kept.items() if is_free(kept)]
        for group in free:
            del self.kept[group]
            remove_placement_group(group)
        return bool(free)
