"""The objects that Ray Tune calls. They forward its events to the engine."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.air.execution._internal import RayActorManager
from ray.tune.execution import tune_controller
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from ressmooth.engines.ray_gpus import Reservations
from ressmooth.errors import ConfigError

if TYPE_CHECKING:
    from ressmooth.engines.ray import RayEngine

NODE_LOST = "worker lost with its node"


class LeaveTune(BaseException):
    """Leaves Tune's loop at once. Tune's own way waits for workers and turns errors into text."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


def _leave_on_error(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            raise LeaveTune(error) from error

    return call


class _TunePart:
    """Base of the objects that Tune pickles. They are never restored."""

    def __init__(self, engine: "RayEngine") -> None:
        super().__init__()
        self.engine = engine

    def __getstate__(self) -> dict[str, Any]:
        return {}


class PlannerSearcher(_TunePart, Searcher):
    @_leave_on_error
    def suggest(self, trial_id: str) -> Any:
        return self.engine.next_run(trial_id)

    def on_trial_complete(self, trial_id: str, result: Any = None, error: bool = False) -> None:
        """Do nothing: the scheduler handles this event."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: the Store has everything."""


class PlannerScheduler(_TunePart, FIFOScheduler):
    @_leave_on_error
    def on_trial_result(self, controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        return self.engine.decide(trial.trial_id, result["epoch"], result["best"])

    @_leave_on_error
    def on_trial_complete(self, controller: Any, trial: Any, result: dict[str, Any]) -> None:
        self.engine.ended(trial.trial_id, result.get("error"))

    @_leave_on_error
    def on_trial_error(self, controller: Any, trial: Any) -> None:
        message = Path(trial.error_file).read_text()
        if "creation task" in message:
            raise ConfigError(
                f"a worker cannot start: {message.strip().splitlines()[-1]}; "
                "every node needs the launcher's ressmooth and Python"
            )
        self.engine.lost(trial.trial_id, _reason(message))


class EventCallback(_TunePart, tune.Callback):
    @_leave_on_error
    def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:
        self.engine.on_step()

    @_leave_on_error
    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        self.engine.on_start(trial.trial_id, trial.temporary_state.ray_actor)


class _ActorManager(RayActorManager):
    """Makes Tune survive Ray's memory monitor: it mistakes a kill for an internal error.

    Needed with Ray 2.60; pyproject.toml pins that version because the class is private.
    """

    def _actor_task_failed(self, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, ray.exceptions.OutOfMemoryError):
            exception = ray.exceptions.RayActorError(error_msg=str(exception))
        super()._actor_task_failed(tracked_actor_task, exception)


tune_controller.RayActorManager = _ActorManager  # type: ignore[attr-defined]
tune_controller.PlacementGroupResourceManager = Reservations  # type: ignore[attr-defined]


def _reason(message: str) -> str:
    """Return in a few words why a worker was lost, from the message of Ray 2.60."""
    if "low on memory" in message:
        return "worker killed: its node is out of memory"
    if "worker process has died" in message:
        return "worker killed, possibly out of memory"
    if "The actor" in message:
        return NODE_LOST
    return f"worker died: {message.split('RuntimeError: ')[-1].strip().splitlines()[-1]}"
