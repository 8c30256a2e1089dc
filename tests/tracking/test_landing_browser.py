"""The first page of `ressmooth ui` in headless Chromium: its queue refreshes by itself."""

import pytest
from helpers.launch import wait_for
from helpers.records import ARMS, open_study
from helpers.servers import Ui
from helpers.specs import study

from ressmooth.store import Priority, default_url, open_store

pytestmark = [pytest.mark.browser, pytest.mark.slow]

TEXT = "return document.getElementById('Queue').innerText"
TOP = "return document.getElementById('ended-9').getBoundingClientRect().top"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("live")


@pytest.fixture(scope="module")
def store(home):
    store = open_store(default_url(home))
    for number in range(20):
        open_study(store, f"ended-{number}")
    yield store
    store.close()


@pytest.fixture(scope="module")
def ui(home, store):
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLFLOW_TRACKING_URI", raising=False)
        patch.delenv("RESSMOOTH_DATABASE_URL", raising=False)
        ui = Ui(home)
    yield ui
    ui.kill()


def submit(store, name):
    store.submit(study(ARMS, seeds=2, name=name), f"somebody-with-a-long-name@{'x' * 60}", None)


@pytest.mark.parametrize("width", [390, 1280])
def test_the_queue_refreshes_and_keeps_the_place_of_the_reader(browser, ui, store, width):
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(ui.address)
    browser.get_log("browser")
    browser.execute_script("document.getElementById('ended-9').scrollIntoView()")
    before = browser.execute_script(TOP)
    name = f"new-{width}"
    submit(store, name)
    wait_for(lambda: name in browser.execute_script(TEXT), 30)
    assert browser.execute_script(TOP) == pytest.approx(before, abs=2)
    store.set_priority(store.study(name).id, Priority.HIGH)
    wait_for(lambda: "high priority" in browser.execute_script(TEXT), 30)
    assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.get_log("browser") == []


def test_the_page_without_javascript_has_the_queue(browser, ui, store):
    submit(store, "plain")
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.get(ui.address)
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "plain" in browser.execute_script(TEXT)


def test_a_queue_that_is_no_longer_refreshed_says_so(browser, ui):
    browser.get(ui.address)
    ui.kill()
    note = "return document.getElementById('Old').innerText"
    wait_for(lambda: "No answer since" in browser.execute_script(note), 30)
    assert browser.execute_script("return document.getElementById('Queue').className") == "card old"
