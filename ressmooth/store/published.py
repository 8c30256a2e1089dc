"""The published figures: rows of the table `baseline`."""

from dataclasses import dataclass

Problem = tuple[str, str, float]  # data set, network, fraction


@dataclass(frozen=True)
class PublishedFigure:
    """One number of the paper's tables (SQL table `baseline`)."""

    table_name: str
    dataset: str
    model: str
    fraction: float
    method: str
    weight_decay: float
    statistic: str  # max: accuracy of the best epoch; mean: of the last tenth of the epochs
    value: float  # accuracy in %

    @property
    def problem(self) -> Problem:
        return self.dataset, self.model, self.fraction
