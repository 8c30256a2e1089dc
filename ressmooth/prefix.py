"""The beginning of a run that is plain SGD: its prefix, which runs can share. Free of torch.

While the scale s is 0, smoothing is the plain squared error, in every bit. With a cutoff, s is 0
until it first reaches it. So all runs of a seed that differ only in their smoothing are one run
until then, and the plain run itself is their trunk:

    sgd      ───────────────┬─────────────┬──────────────────>  plain to its end
    b = 0.1                 │             └──────────────────>  forks where s reaches the cutoff
    b = 0.5                 └────────────────────────────────>
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ressmooth.config import ANNEALING, LOSS, MACHINE, SPECIFIC, RunConfig, used_settings

DEFAULTS = {name: field.default for name, field in RunConfig.model_fields.items()}
# Settings without an effect on a plain epoch
SMOOTHING = {"method", "scale", *SPECIFIC["method"]["smoothing"], *ANNEALING} - {*LOSS}
REACH = {  # |x - mu horizon| / b where s is the cutoff: solves (14) and (13)
    "laplace": lambda cutoff: -math.log(cutoff),
    "logistic": lambda cutoff: 2 * math.acosh(1 / math.sqrt(cutoff)),
}


class Prefix(NamedTuple):
    """What a run shares with others of its seed."""

    key: str  # equal for runs that are the same while they are plain
    epochs: int  # from the first on, that are plain; then the run forks


def prefix_of(settings: Mapping[str, Any]) -> Prefix | None:
    """Return the prefix of a run with these settings, or None if no epoch of it is plain."""
    settings = {**DEFAULTS, **settings}
    epochs = _plain_epochs(settings)
    return Prefix(prefix_key(settings), epochs) if epochs else None


def _plain_epochs(settings: Mapping[str, Any]) -> int:
    epochs, cutoff = int(settings["epochs"]), settings["cutoff"]
    if settings["method"] == "mse":
        return epochs
    if settings["method"] != "smoothing" or not cutoff or settings["distribution"] not in REACH:
        return 0
    reach: float = REACH[settings["distribution"]](cutoff) * settings["b"] / settings["horizon"]
    # The last step of epoch n begins before n / epochs: no rounding error reaches it.
    return max(0, math.floor(epochs * (float(settings["mu"]) - reach)))


def prefix_key(settings: Mapping[str, Any]) -> str:
    """Return a hash of all that a plain epoch depends on, except the seed and the machine."""
    used = {*used_settings({**settings, "method": "mse"})} - MACHINE - SMOOTHING - {"seed"}
    content = {name: settings[name] for name in used}
    content["plugin_settings"] = settings.get("plugin_settings") or {}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def shared_epochs(prefixes: Iterable[int], forks: Sequence[int]) -> int:
    """Return how many epochs are not trained again if runs share their prefixes.

    Takes the plain epochs of the runs in their order, and the epochs where checkpoints are kept.
    """
    shared = reached = 0
    for plain in prefixes:
        shared += max((fork for fork in forks if fork <= min(plain, reached)), default=0)
        reached = max(reached, plain)
    return shared
