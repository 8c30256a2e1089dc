"""The table of a race of seeds in a study file."""

from typing import Self

from pydantic import Field, field_validator, model_validator

from ressmooth.config import Table
from ressmooth.spec.schema import FRESH_SEED


class Race(Table):
    """seeds = { race = true, ... }"""

    race: bool = Field(description="true: configurations that fall behind get no more seeds")
    at_least: int = Field(2, ge=2, le=FRESH_SEED, description="seeds of every trial")
    at_most: int = Field(
        10, ge=2, le=FRESH_SEED, description="seeds of the configurations that are hard to tell"
    )

    @field_validator("race")
    @classmethod
    def _check_race(cls, race: bool) -> bool:
        if not race:
            raise ValueError("input should be true; without a race write seeds = N")
        return race

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.at_least > self.at_most:
            raise ValueError("at_least should not be greater than at_most")
        return self
