"""One application of our pages and MLflow: MLflow is below /mlflow, and its API also below /.

mlflow reads its settings when it is imported, so set `environment` before.
"""

from collections.abc import Sequence
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import BaseRoute, Router
from starlette.types import ASGIApp, Receive, Scope, Send

MLFLOW = "/mlflow"  # MLflow's own pages are below this path


def environment(
    uri: str, artifacts: str, hosts: Sequence[str], origins: Sequence[str]
) -> dict[str, str]:
    """Return what `mlflow server` passes to its workers, for a database and a place of artifacts.

    `hosts` are the Host headers to accept, `origins` the pages that may change something.
    """
    return {
        "_MLFLOW_SERVER_FILE_STORE": uri,
        "_MLFLOW_SERVER_REGISTRY_STORE": uri,
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
        "_MLFLOW_SERVER_ARTIFACT_DESTINATION": artifacts,
        "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
        "_MLFLOW_SGI_NAME": "uvicorn",
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(hosts),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(origins),
        "MLFLOW_SERVER_DISABLE_SECURITY_MIDDLEWARE": "false",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }


def protect(app: ASGIApp, hosts: Sequence[str], origins: Sequence[str]) -> ASGIApp:
    """Return the application behind checks of the Host and Origin headers."""
    from mlflow.server.fastapi_security import HostValidationMiddleware, SecurityHeadersMiddleware

    checked: Any = HostValidationMiddleware(Origins(app, origins), list(hosts))
    protected: ASGIApp = SecurityHeadersMiddleware(checked)
    return protected


class Front:
    """Answers our pages, and passes everything else to MLflow."""

    def __init__(self, mlflow: ASGIApp, pages: Sequence[BaseRoute]) -> None:
        self.mlflow = mlflow
        self.pages = Router(pages, redirect_slashes=False, default=mlflow)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] == "http" and path == MLFLOW:
            await RedirectResponse(f"{MLFLOW}/")(scope, receive, send)
        elif scope["type"] == "http" and path.startswith(f"{MLFLOW}/"):
            # MLflow's pages use relative addresses, so they need not know the prefix
            below = {"path": path.removeprefix(MLFLOW), "raw_path": _below(scope["raw_path"])}
            await self.mlflow({**scope, **below}, receive, send)
        elif scope["type"] == "http":
            await self.pages(scope, receive, send)
        else:
            await self.mlflow(scope, receive, send)


def _below(raw_path: bytes) -> bytes:
    return raw_path.removeprefix(MLFLOW.encode())


class Origins:
    """Refuses changes that a page of another origin sends.

    MLflow itself accepts every origin on localhost, whatever its port, and lets it read answers.
    """

    def __init__(self, app: ASGIApp, allowed: Sequence[str]) -> None:
        self.app, self.allowed = app, frozenset(allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = Headers(scope=scope).get("origin") if scope["type"] == "http" else None
        if origin is None or origin in self.allowed:
            await self.app(scope, receive, send)
        elif scope["method"] in ("GET", "HEAD"):
            # without the header there is no CORS header in the answer, and the page cannot read it
            scope = {**scope, "headers": list(scope["headers"])}
            del MutableHeaders(scope=scope)["origin"]
            await self.app(scope, receive, send)
        else:
            text = f"Pages of {origin!r} may not change anything here; allowed origins: "
            answer = PlainTextResponse(text + ", ".join(sorted(self.allowed)) + "\n", 403)
            await answer(scope, receive, send)
