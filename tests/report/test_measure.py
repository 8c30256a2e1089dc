import pytest

from ressmooth.config import METRIC
from ressmooth.report.measure import MEASURES

ACCURACY, NLL, ECE = (MEASURES[name] for name in ("accuracy", "nll", "ece"))


def test_every_metric_has_its_wording():
    assert MEASURES.keys() == METRIC.keys()
    assert all(measure.name == name for name, measure in MEASURES.items())


def test_only_percentages_have_an_upper_limit():
    assert ACCURACY.interval((-3.0, 104.0)) == "0.00 to 100.00"
    assert ACCURACY.interval((-3.0, 4.0), signs=True) == "−3.00 to +4.00"
    assert NLL.interval((-0.5, 104.0)) == "0.0000 to 104.0000"
    assert NLL.interval(None) == "–"


@pytest.mark.parametrize(
    "points, text",
    [(None, "–"), (-1.4e-14, "+0.00"), (-0.004, "+0.00"), (0.5, "+0.50"), (-0.5, "−0.50")],
)
def test_a_rounded_zero_has_no_minus_sign(points, text):
    assert ACCURACY.signed(points) == text


@pytest.mark.parametrize(
    "measure, value, amount, difference, title",
    [
        (ACCURACY, 91.5, "91.50 %", "+1.00 points", "max accuracy in %"),
        (NLL, 0.35, "0.3500", "+1.0000", "best NLL"),
        (ECE, 0.35, "0.35 %", "+1.00 points", "best ECE in %"),
        (MEASURES["macro_f1"], 91.5, "91.50 %", "+1.00 points", "max macro F1 in %"),
    ],
    ids=lambda each: getattr(each, "name", None),
)
def test_units_and_decimals_are_those_of_the_metric(measure, value, amount, difference, title):
    assert measure.amount(value) == amount and measure.amount(None) == ""
    assert measure.points(measure.signed(1.0)) == difference
    assert measure.title("max") == title


def test_intervals_end_where_the_metric_does():
    assert ACCURACY.interval((-3.0, 104.0)) == "0.00 to 100.00"
    assert ACCURACY.interval((-250.0, 104.0), signs=True) == "−100.00 to +100.00"
    assert NLL.interval((-250.0, 104.0), signs=True) == "−250.0000 to +104.0000"


def test_lower_is_better_for_losses():
    assert max([0.3, 0.2, 0.4], key=NLL.score) == 0.2
    assert max([0.3, 0.2, 0.4], key=ACCURACY.score) == 0.4
