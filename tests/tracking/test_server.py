"""`ressmooth ui` in headless Chromium: what a user sees without any click, and the links."""

import os
import re

import pytest
from helpers import specs
from helpers.records import ENVIRONMENT, EPOCHS, epoch, open_study, simulate, train_all
from helpers.servers import Ui

from ressmooth.store import default_url, open_store
from ressmooth.tracking.relay import sync
from ressmooth.tracking.server import tracking_uri

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TIMEOUT = 60  # seconds to load a page
CHART = "[data-testid=experiment-view-compare-runs-card]"
ARMS = {
    "sgd": {"method": "mse"},
    "laplace": {"b": {"grid": [0.3, 0.9]}},
    "logistic": {"distribution": "logistic", "b": 0.5},
}


@pytest.fixture(scope="module")
def ui(tmp_path_factory):
    """Serve two studies with `ressmooth ui`: one with a clear winner, and one that still runs."""
    home = tmp_path_factory.mktemp("home")
    store = open_store(default_url(home))
    spec = specs.study(ARMS, name="compared", seeds=3, epochs=EPOCHS)
    study = simulate(
        store, spec, lambda c: 80.0 + 10 * c["b"] * (c["method"] != "mse") + c["seed"], EPOCHS
    )
    store.announce_study(study.id)
    train_all(store, open_study(store, "seen"), home)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        sync(store, home, tracking_uri(home))
        running = open_study(store, "running", seeds=1)
        attempt = store.claim(store.trials(running)[0].runs[0].id, ENVIRONMENT)
        for number in range(1, EPOCHS):
            store.record_epoch(attempt, epoch(number), None)
        sync(store, home, tracking_uri(home))
        ui = Ui(home)
    store.close()
    yield ui
    ui.kill()


@pytest.fixture
def printed(ui):
    """Return the addresses that `ressmooth ui` has printed, by study."""
    return dict(re.findall(r"^  (\S+): (\S+)$", ui.log.read_text(), re.MULTILINE))


@pytest.fixture
def find(browser):
    """Return a function that waits for `count` elements of a CSS selector."""
    from selenium.webdriver.common.by import By
    from selenium.webdriver.support.wait import WebDriverWait

    def find(selector, count=1, inside=None):
        def found(_):
            elements = (inside or browser).find_elements(By.CSS_SELECTOR, selector)
            return elements if len(elements) >= count else False

        return WebDriverWait(browser, TIMEOUT).until(found, f"{count} x {selector}")

    return find


@pytest.fixture
def links(browser, ui, find):
    """Return the links of MLflow's own table: the study's parent run, then its child runs."""
    browser.get(f"{ui.address}/curves/seen")
    find(CHART)
    experiment = re.search(r"/experiments/(\d+)", browser.current_url)[1]
    browser.execute_script("localStorage.clear()")  # where MLflow keeps which rows are expanded
    browser.get(ui.address)
    browser.get(f"{ui.address}/mlflow/#/experiments/{experiment}/runs")
    find("[role=gridcell] button")[0].click()
    return find("[role=gridcell] a[href*='/runs/']", 1 + 3 * 2)


def screenshot(browser, name):
    """Save a screenshot if RESSMOOTH_SCREENSHOTS names a directory."""
    if directory := os.environ.get("RESSMOOTH_SCREENSHOTS"):
        browser.save_screenshot(f"{directory}/ui-{name}.png")


def legend_of(card):
    """Return the names in the legend of a chart: sgd (val_acc_percent)"""
    return set(re.findall(r"^(\S+) \(\w+\)$", card.text, re.MULTILINE))


def test_the_printed_address_shows_the_arms_against_each_other(browser, printed, find):
    """If this fails, MLflow has changed the format of its shared views: see tracking/view.py."""
    browser.get(printed["compared"])
    charts = find(CHART, 4)
    find(".scatterlayer .trace .points path", 2 * 3, inside=charts[0])  # 2 epochs of 3 arms
    screenshot(browser, "charts")
    assert legend_of(charts[0]) >= {"sgd", "laplace", "logistic"}
    page = browser.page_source
    for title in ("val_acc_percent", "train_loss", "val_loss", "scale"):
        assert title in page
    assert "validated on the test set, as in the paper" in page
    assert "Group: laplace" in page and "laplace b=0.9 seed 0" in page
    assert "laplace b=0.3 seed" not in page  # not in the comparison
    assert "Ask a question" not in page  # MLflow's chat panel stays closed


def test_the_table_has_the_arms_means_and_the_searched_settings(browser, printed, find):
    browser.get(printed["compared"])
    find(CHART, 4)
    browser.get(browser.current_url.replace("CHART", "TABLE"))
    find("[col-id*='max_acc_percent']", 2 + 3 * 3)
    screenshot(browser, "table")
    heads = {cell.text for cell in find(".ag-header-cell", 8)}
    assert {"arm", "state", "b"} <= heads
    rows = {row.text.replace("\n", " ") for row in find(".ag-center-cols-container [role=row]", 3)}
    assert any("90" in row for row in rows)  # laplace: the mean of 89, 90 and 91


def test_a_study_that_still_runs_shows_its_curves_so_far(browser, printed, find):
    browser.get(printed["running"])
    charts = find(CHART, 4)
    find(".scatterlayer .trace .points path", EPOCHS - 1, inside=charts[2])
    screenshot(browser, "running")
    assert "sgd" in legend_of(charts[2]) and "train_loss" in charts[2].text


def test_the_study_and_its_runs_are_in_the_table(browser, links):
    screenshot(browser, "runs")
    names = [link.text for link in links]
    configurations = ("sgd", "laplace b=0.3", "laplace b=0.5")
    assert names[0] == "seen"
    assert set(names[1:]) == {f"{c} seed {seed}" for c in configurations for seed in (0, 1)}


def test_a_run_has_its_curves(browser, links, find):
    browser.get(page_of(links[1]) + "/model-metrics")
    charts = find(".js-plotly-plot", 4)
    points = find(".scatterlayer .points path", EPOCHS, inside=charts[0])
    screenshot(browser, "curves")
    assert len(points) == EPOCHS
    assert "diffusivity" in browser.page_source and "Step" in charts[0].text


def test_the_search_is_drawn_by_plotly(browser, links, find):
    browser.get(page_of(links[0]) + "/artifacts/search/laplace.html")
    browser.switch_to.frame(find("iframe")[0])
    find(".js-plotly-plot .main-svg", 4)
    browser.switch_to.default_content()
    screenshot(browser, "search")


def page_of(link):
    return link.get_attribute("href").partition("?")[0]


OVERFLOWING = """
return [...document.querySelectorAll("body *")]
  .filter(e => !e.closest("pre") && e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => e.outerHTML.slice(0, 100));
"""


@pytest.fixture(params=[(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")], ids=str)
def landing(request, browser, ui):
    width, scheme = request.param
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get_log("browser")  # discard earlier entries
    browser.get(ui.address)
    screenshot(browser, f"landing-{width}-{scheme}")
    yield browser
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_the_landing_page_fits_and_logs_no_errors(landing):
    assert landing.get_log("browser") == []
    assert landing.execute_script(OVERFLOWING) == []
    assert landing.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    names = landing.execute_script(
        "return [...document.querySelectorAll('h2')].map(e => e.innerText)"
    )
    assert names == ["running", "seen", "compared"]


def test_the_links_of_the_landing_page_work(browser, ui, find):
    browser.get(ui.address)
    find("#compared a[href^='/report/']")[0].click()
    assert "compared · ressmooth" in browser.title and find("figure svg", 3)
    browser.back()
    find("#compared a[href^='/curves/']")[0].click()
    find(CHART, 4)
    browser.back()
    find("header a")[0].click()
    find("a[href*='/experiments/']", 3)


def test_an_old_bookmark_still_reaches_mlflow(browser, ui, find):
    browser.get("about:blank")
    browser.get(f"{ui.address}/#/experiments")
    find("a[href*='/experiments/']", 3)
    assert browser.current_url.startswith(f"{ui.address}/mlflow/#/experiments")
