"""Our pages and MLflow as one application, without a server."""

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ressmooth.tracking.front import Front, Origins

OURS = "http://127.0.0.1:5000"


async def mlflow(scope, receive, send):
    """Answer with what MLflow is asked."""
    request = Request(scope)
    seen = {"path": scope["path"], "raw": scope["raw_path"].decode(), "query": request.url.query}
    await JSONResponse({**seen, "origin": request.headers.get("origin")})(scope, receive, send)


@pytest.fixture
def client():
    pages = [Route("/", lambda _: PlainTextResponse("studies"))]
    return TestClient(Origins(Front(mlflow, pages), [OURS]), follow_redirects=False)


def test_mlflow_is_below_its_path_and_its_api_at_the_root(client):
    assert client.get("/").text == "studies"
    assert client.get("/mlflow").headers["location"] == "/mlflow/"
    assert client.get("/mlflow/").json()["path"] == "/"
    for path in ("/mlflow/ajax-api/2.0/x", "/ajax-api/2.0/x"):
        assert client.get(path).json()["path"] == "/ajax-api/2.0/x"
    seen = client.get("/mlflow/get%2Fartifact?path=a").json()
    assert (seen["raw"], seen["query"]) == ("/get%2Fartifact", "path=a")
    assert client.get("/mlflowers").json()["path"] == "/mlflowers"


FOREIGN = ("http://localhost:9999", "http://127.0.0.1:5001", "https://127.0.0.1:5000", "null", "")


@pytest.mark.parametrize("origin", FOREIGN)
def test_pages_of_other_origins_change_nothing_and_read_nothing(client, origin):
    for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        answer = client.request(method, "/api/2.0/x", headers={"Origin": origin})
        assert answer.status_code == 403 and OURS in answer.text, method
    answer = client.get("/api/2.0/x", headers={"Origin": origin})
    assert answer.json()["origin"] is None  # so MLflow does not permit the page to read it


def test_own_pages_and_programs_may_change_things(client):
    assert client.post("/api/2.0/x", headers={"Origin": OURS}).json()["origin"] == OURS
    assert client.post("/api/2.0/x").status_code == 200
