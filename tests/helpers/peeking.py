"""Simulated studies, under several policies of looking at them.

`python tests/helpers/peeking.py` prints the tables of tests/README.md, from 10,000 studies each.
Effects are in standard deviations of a seed's difference. The generator is NumPy's default_rng(0).
"""

import numpy as np
from scipy import stats

from ressmooth.evidence import LEVEL, PRIOR_SD
from ressmooth.report.stats import Sample, difference

MOST = 100  # seeds after which everybody gives up
FIRST = 3  # seeds of the first look of those who follow the advice
ARMS = 4  # of the adversary's studies, compared with one reference
NEVER = MOST + 1


def studies(number, effect=0.0, arms=1, seeds=MOST):
    """Return paired differences, [studies, arms, seeds]. Arms share the reference's seeds."""
    draws = np.random.default_rng(0).normal(size=(number, arms + 1, seeds)) / np.sqrt(2)
    return draws[:, 1:] - draws[:, :1] + effect


def t_statistics(differences):
    """Return the t statistic of each look: after 2, 3, ... seeds, the last axis."""
    n = np.arange(1, differences.shape[-1] + 1)
    mean = differences.cumsum(-1) / n
    squares = (differences**2).cumsum(-1) - n * mean**2
    return (np.sqrt(n) * mean)[..., 1:] / np.sqrt(squares[..., 1:] / (n[1:] - 1))


def decisions(differences, comparisons=1, prior_sd=PRIOR_SD):
    """Return whether each look, taken alone, decides: after 2, 3, ... seeds, the last axis."""
    t2, n = t_statistics(differences) ** 2, np.arange(2, differences.shape[-1] + 1)
    v, g = n - 1, 1 + n * prior_sd**2
    log_e = (n * (np.log1p(t2 / v) - np.log1p(t2 / (g * v))) - np.log(g)) / 2
    return log_e >= np.log(comparisons / LEVEL)


def t_tests(differences, comparisons=1):
    """Return whether each look, taken alone, has p < 5 % in a t-test."""
    level = LEVEL / comparisons
    critical = stats.t.ppf(1 - level / 2, np.arange(1, differences.shape[-1]))
    return np.abs(t_statistics(differences)) > critical


def fixed(looks, drawn):
    """Look once, at 10 seeds."""
    return looks[:, 0, 10 - 2]


def each_seed(looks, drawn):
    """Look after each of 20 seeds."""
    return looks[:, 0, : 20 - 1].any(-1)


def follow_the_advice(looks, drawn):
    """Train as many more seeds as the report says, until it says that it would take too many."""
    return np.array([_follow(*each) for each in zip(looks[:, 0], drawn[:, 0], strict=True)])


def _follow(looks, differences):
    n = FIRST
    while n <= MOST:
        if looks[n - 2]:
            return True
        ours, zeros = (Sample(dict(enumerate(v[:n]))) for v in (differences, np.zeros(n)))
        if (more := difference(ours, zeros).more_seeds) is None:
            return False
        n += more
    return False


def until_significant(looks, drawn):
    """Look after each of 100 seeds, and stop at the first verdict."""
    return looks[:, 0].any(-1)


def adversarial(looks, drawn):
    """Know all looks at four arms, in any order, and report the one with the best verdict."""
    return looks.any((-1, -2))


POLICIES = (fixed, each_seed, follow_the_advice, until_significant, adversarial)


def false_verdicts(policy, number, test=decisions):
    """Return the share of studies without a difference in which a policy finds one."""
    arms = ARMS if policy is adversarial else 1
    drawn = studies(number, arms=arms)
    return policy(test(drawn, arms), drawn).mean()


def seeds_needed(looks):
    """Return the number of seeds at the first verdict of each study, [studies]."""
    return np.where(looks[:, 0].any(-1), looks[:, 0].argmax(-1) + 2, NEVER)


def main(number=10_000):
    _policies(number)
    _priors(number)
    _powers(number)
    _shapes(number)


def _policies(number):
    print("| policy | t-test | evidence |\n|---|---|---|")
    for policy in POLICIES:
        shares = (false_verdicts(policy, number, test) for test in (t_tests, decisions))
        print(f"| {policy.__doc__} |", " | ".join(f"{100 * s:.1f} %" for s in shares), "|")


def _priors(number):
    print("\n| c | false verdicts, 20 looks | fewest seeds | seeds at 1 sd | 2 sd | 3 sd |")
    print("|---|---|---|---|---|---|")
    for prior_sd in (0.5, 1.0, 2.0, 4.0):
        wrong = each_seed(decisions(studies(number), 1, prior_sd), None).mean()
        needed = [seeds_needed(decisions(studies(number, e), 1, prior_sd)) for e in (1, 2, 3)]
        fewest = seeds_needed(decisions(studies(100, 1e6), 1, prior_sd)).min()
        means = " | ".join(f"{each.mean():.1f}" for each in needed)
        print(f"| {prior_sd:g} | {100 * wrong:.1f} % | {fewest} | {means} |")


def _powers(number):
    print("\n| effect | t-test, 5 | evidence, 5 | t-test, 10 | evidence, 10 | mean seeds |")
    print("|---|---|---|---|---|---|")
    for effect in (0.5, 1.0, 1.5, 2.0, 3.0):
        drawn = studies(number, effect)
        looks, tests = decisions(drawn)[:, 0], t_tests(drawn)[:, 0]
        pairs = [(tests[:, n - 2], looks[:, : n - 1].any(-1)) for n in (5, 10)]
        powers = " | ".join(f"{100 * each.mean():.0f} %" for pair in pairs for each in pair)
        mean = np.minimum(seeds_needed(looks[:, None]), 10).mean()
        print(f"| {effect:g} sd | {powers} | {mean:.1f} |")


def _shapes(number):
    rng, size = np.random.default_rng(0), (2, number, 1, 20)
    normal, skewed = rng.normal(size=size), rng.exponential(size=size)
    shapes = {
        "each accuracy rounded to its standard deviation": np.round(normal[0])
        - np.round(normal[1]),
        "heavy tails, t with 3 degrees of freedom": rng.standard_t(3, size[1:]),
        "both arms skewed": skewed[0] - skewed[1],
        "one arm skewed, the other without spread": skewed[0] - 1,
    }
    print("\n| differences | t-test, 20 looks | evidence, 20 looks |\n|---|---|---|")
    for name, drawn in shapes.items():
        with np.errstate(invalid="ignore", divide="ignore"):  # equal differences so far
            shares = [each_seed(test(drawn), drawn).mean() for test in (t_tests, decisions)]
        print(f"| {name} |", " | ".join(f"{100 * s:.1f} %" for s in shares), "|")


if __name__ == "__main__":
    main()
