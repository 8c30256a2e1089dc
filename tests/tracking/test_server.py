"""`ressmooth ui` in headless Chromium."""

import os
import subprocess
import sys

import pytest
from helpers.records import EPOCHS, free_port, open_study, train_all, wait_for

from ressmooth.store import open_store
from ressmooth.tracking.relay import sync
from ressmooth.tracking.server import pages, tracking_uri

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TIMEOUT = 60  # seconds to load a page


@pytest.fixture(scope="module")
def address(browser, tmp_path_factory):
    """Serve a small study with `ressmooth ui`. Yield the address of its runs."""
    home, port = tmp_path_factory.mktemp("home"), free_port()
    store = open_store(f"sqlite:///{home}/results.db")
    train_all(store, open_study(store, "seen"), home)
    command = [sys.executable, "-m", "ressmooth.cli", "ui", "--home", home, "--port", str(port)]
    with pytest.MonkeyPatch.context() as patch, open(home / "ui.log", "w") as log:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        sync(store, home, tracking_uri(home))
        shown = pages(home, port)["seen"]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    store.close()
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        yield shown
    finally:
        os.killpg(process.pid, 9)
        process.wait()


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
def links(browser, address, find):
    """Return the links of the runs table: the study's parent run, then its child runs."""
    browser.get(address)
    browser.execute_script("localStorage.clear()")  # where MLflow keeps which rows are expanded
    browser.refresh()
    find("[role=gridcell] button")[0].click()
    return find("[role=gridcell] a[href*='/runs/']", 1 + 3 * 2)


def screenshot(browser, name):
    """Save a screenshot if RESSMOOTH_SCREENSHOTS names a directory."""
    if directory := os.environ.get("RESSMOOTH_SCREENSHOTS"):
        browser.save_screenshot(f"{directory}/ui-{name}.png")


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
