"""The report in headless Chromium, as wide as a desktop and as a phone."""

import base64
import json
import os

import pytest
from helpers import records, specs
from helpers.shown import FIVE

from ressmooth.report.page import Report, write
from ressmooth.store import open_store

pytestmark = [pytest.mark.browser, pytest.mark.slow]

ARMS = {
    "sgd": {"method": "mse", "weight_decay": {"grid": [1e-2, 1e-3]}},
    "laplace": {"weight_decay": 1e-3, "b": {"grid": [0.9, 1.3]}, "alpha": {"grid": [0.5, 1.0]}},
    "logistic": {"weight_decay": 1e-3, "distribution": "logistic", "b": 0.5},
}
OVERFLOWING = """
return [...document.querySelectorAll("body *")]
  .filter(e => !e.closest(".scroll, svg, pre") && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.outerHTML.slice(0, 100));
"""
OVERLAPPING = """
const boxes = [...document.querySelectorAll("h1, h2, h3, p, li, .scroll, figure, summary")]
  .filter(e => !e.closest("details:not([open])") || e.tagName === "SUMMARY")
  .map(e => [e, e.getBoundingClientRect()]);
const found = [];
for (const [a, p] of boxes) for (const [b, q] of boxes) {
  const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
  const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
  if (a !== b && !a.contains(b) && !b.contains(a) && across > 1 && down > 1)
    found.push(a.outerHTML.slice(0, 80) + " / " + b.outerHTML.slice(0, 80));
}
return found;
"""
COLOURS = """
const body = getComputedStyle(document.body);
return [body.color, body.backgroundColor];
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory, quick_directory):
    store = open_store(f"sqlite:///{quick_directory}/page.db")
    settings = {"dataset": "fashion_mnist", "model": "resnet20", "epochs": 48}
    spec = specs.study(
        ARMS, seeds=3, name="seen", grid={"fraction": [0.25, 0.125]}, confirm=3, **settings
    )
    study = records.simulate(
        store, spec, lambda c: 89.0 + c["b"] + c["seed"] % 4 / 5 + (c["weight_decay"] == 1e-3)
    )
    directory = tmp_path_factory.mktemp("seen")
    write(Report(store, study), directory)
    store.close()
    return directory / "index.html"


@pytest.fixture(scope="module")
def searched_page(tmp_path_factory, quick_directory):
    """A search in five dimensions, with figures as wide as they get."""
    store = open_store(f"sqlite:///{quick_directory}/searched.db")
    search = {"sampler": "random", "trials": 12}
    spec = specs.study(FIVE, seeds=3, name="searched", search=search)
    study = records.simulate(
        store, spec, lambda c: 60.0 + 0.1 * c["alpha"] + [0.0, 39.9, 20.0][c["seed"]] * c["mu"]
    )
    directory = tmp_path_factory.mktemp("searched")
    write(Report(store, study), directory)
    store.close()
    return directory / "index.html"


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (390, "light")], ids=str)
def shown(request, browser, page):
    width, scheme = request.param
    size = {"width": width, "height": 1000, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    for kind in ("browser", "performance"):
        browser.get_log(kind)  # discard earlier entries
    browser.get(page.as_uri())
    if directory := os.environ.get("RESSMOOTH_SCREENSHOTS"):
        taken = browser.execute_cdp_cmd("Page.captureScreenshot", {"captureBeyondViewport": True})
        with open(f"{directory}/report-{width}-{scheme}.png", "wb") as file:
            file.write(base64.b64decode(taken["data"]))
    return browser, scheme


def test_the_page_requests_nothing_and_logs_no_errors(shown, page):
    browser, _ = shown
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requested = [
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert requested and {url for url in requested if not url.startswith("data:")} == {
        page.as_uri()
    }


def test_nothing_overlaps_or_leaves_the_page(shown):
    browser, _ = shown
    assert browser.execute_script(OVERFLOWING) == []
    assert browser.execute_script(OVERLAPPING) == []
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    pictures = browser.execute_script("return document.querySelectorAll('figure svg').length")
    assert pictures == browser.execute_script(
        "return [...document.querySelectorAll('figure svg')]"
        ".filter(e => e.getBoundingClientRect().width > 250).length"
    )
    assert pictures > 10


HIDDEN = """
return [...document.querySelectorAll("table.sheet")].slice(0, 2)
  .flatMap(table => [...table.querySelectorAll("th, td")])
  .filter(e => e.getBoundingClientRect().right > innerWidth || e.getBoundingClientRect().left < 0)
  .map(e => e.innerText);
"""


def test_differences_and_p_of_five_searched_settings_are_visible(shown, searched_page):
    browser, _ = shown
    browser.get(searched_page.as_uri())
    (head, *_) = browser.execute_script(
        "return [...document.querySelectorAll('table.sheet thead')].map(e => e.innerText)"
    )
    assert head.split()[-1] == "p"
    assert browser.execute_script(HIDDEN) == []
    assert browser.execute_script(OVERFLOWING) == []


def test_both_colour_schemes_are_readable(shown):
    browser, scheme = shown
    ink, ground = (luminance(colour) for colour in browser.execute_script(COLOURS))
    assert (ink < ground) == (scheme == "light")
    lighter, darker = max(ink, ground), min(ink, ground)
    assert (lighter + 0.05) / (darker + 0.05) > 7  # WCAG's AAA


def luminance(colour):
    """Return the relative luminance of "rgb(r, g, b)"."""
    parts = [int(part) / 255 for part in colour[4:-1].split(",")]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_list_of_all_runs_can_be_opened(shown):
    browser, _ = shown
    browser.execute_script("document.querySelectorAll('details').forEach(e => e.open = true)")
    assert browser.execute_script(OVERFLOWING) == []
    rows = browser.execute_script(
        "return document.querySelectorAll('details tbody tr:has(td)').length"
    )
    assert rows == 2 * 7 * 3 + 2 * 3 * 3  # searched and confirmed
