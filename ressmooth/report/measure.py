"""How a metric is written, and which of two values is better."""

from dataclasses import dataclass

from ressmooth.config import METRIC, Metric
from ressmooth.evidence import Interval
from ressmooth.report.stats import Sample

MISSING = "–"


@dataclass(frozen=True)
class Measure:
    """The wording of one metric."""

    name: str  # of METRIC
    label: str  # in sentences
    places: int = 2  # decimals

    @property
    def metric(self) -> Metric:
        return METRIC[self.name]

    @property
    def unit(self) -> str:
        """The unit after a value, with its space."""
        return " %" if self.metric.unit else ""

    @property
    def axis(self) -> str:
        """The metric with its unit, for axes of figures."""
        return self.label + (" (%)" if self.metric.unit else "")

    def word(self, statistic: str) -> str:
        """Return the shown name of a statistic. The largest value is not the best of a loss."""
        return "best" if statistic == "max" and not self.metric.is_higher_better else statistic

    def title(self, statistic: str) -> str:
        """Return "max accuracy in %"."""
        in_unit = " in %" if self.metric.unit else ""
        return f"{self.word(statistic)} {self.label}{in_unit}"

    def phrase(self, statistic: str) -> str:
        """Return a statistic as part of a sentence."""
        return {
            "max": f"the best epoch's {self.label}",
            "mean": f"the mean {self.label} over the last tenth of the epochs",
            "test": f"the test {self.label}",
        }[statistic]

    def score(self, value: float) -> float:
        """Return a number that is higher for better values."""
        return value if self.metric.is_higher_better else -value

    def number(self, value: float | None, missing: str = MISSING) -> str:
        return decimal(value, missing, self.places)

    def amount(self, value: float | None) -> str:
        """Return a value with its unit, or nothing if there is none."""
        return "" if value is None else f"{self.number(value)}{self.unit}"

    def signed(self, value: float | None) -> str:
        if value is None:
            return MISSING
        rounded = round(value, self.places) + 0.0  # + 0.0 turns -0.0 into 0.0
        return f"{rounded:+.{self.places}f}".replace("-", "−")

    def points(self, text: str) -> str:
        """Return a difference with its unit: 1.01 points"""
        return f"{text} points" if self.metric.unit else text

    def mean_and_sd(self, sample: Sample) -> str:
        spread = "" if sample.sd is None else f" ± {self.number(sample.sd)}"
        return self.number(sample.mean) + spread

    def interval(self, interval: Interval | None, *, signs: bool = False) -> str:
        """Return an interval of a difference (with signs) or of a mean, within its limits."""
        if interval is None:
            return MISSING
        high = 100.0 if self.metric.unit else float("inf")
        low = -high if signs else 0.0
        ends = (min(max(end, low), high) for end in interval)
        return " to ".join(self.signed(end) if signs else self.number(end) for end in ends)


MEASURES = {
    "accuracy": Measure("accuracy", "accuracy"),
    "nll": Measure("nll", "NLL", places=4),
    "ece": Measure("ece", "ECE"),
    "macro_f1": Measure("macro_f1", "macro F1"),
}


def capitalised(text: str) -> str:
    return text[:1].upper() + text[1:]


def decimal(value: float | None, missing: str = MISSING, places: int = 2) -> str:
    return missing if value is None else f"{value:.{places}f}"
