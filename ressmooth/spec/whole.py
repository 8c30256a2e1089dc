"""What a study file says of the study as a whole: its head, [search] and [resources]."""

import re
from typing import Literal

from pydantic import Field, field_validator

from ressmooth.spec.space import Table

NAME = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9._-]{0,63}")
NAME_RULE = "a name has 1 to 64 of a-z 0-9 . _ - and no '..', and begins with a letter or digit"
FRESH_SEED = 10_000  # seeds from here on have not selected anything


class Search(Table):
    sampler: Literal["grid", "random", "tpe", "cmaes"] = "grid"
    pruner: Literal["none", "median", "asha"] = "none"
    trials: int | None = Field(None, ge=1, le=100_000)  # per branch, over all launches
    hours: float | None = Field(None, gt=0, le=10_000)  # over all launches
    objective: Literal["max", "mean"] = "max"  # accuracy: best epoch, or mean of the last tenth
    seed: int = Field(0, ge=0, lt=2**31)  # of the sampler


class Resources(Table):
    workers: int | None = Field(None, ge=1, le=1024)  # None: as many as fit
    gpus_per_run: float = Field(0.0, ge=0, le=1024)
    cpus_per_run: float = Field(1.0, gt=0, le=1024)
    retries: int = Field(3, ge=0, le=100)  # worker deaths per run

    @property
    def threads(self) -> int:
        """Of a run that does not say otherwise."""
        return max(1, int(self.cpus_per_run))

    @field_validator("gpus_per_run", "cpus_per_run")
    @classmethod
    def _share(cls, value: float) -> float:
        if value > 1 and not value.is_integer():
            raise ValueError("input should be a part of one device, or a whole number of them")
        return value


class Head(Table):
    """What a file says of the study as a whole."""

    name: str
    description: str = Field("", max_length=10_000, pattern=r"^[^\x00]*$")  # SQL stores no NUL
    seeds: int = Field(1, ge=1, le=FRESH_SEED)
    confirm: int = Field(0, ge=0, le=1_000)

    @field_validator("name")
    @classmethod
    def _named(cls, name: str) -> str:
        if not NAME.fullmatch(name):
            raise ValueError(NAME_RULE)
        return name
