"""MLflow for a team: behind a log-in, with our pages in front of it. See docker/mlflow-server.

    python -m ressmooth.tracking.deployed --host 0.0.0.0 --port 5000 --workers 2

Settings are MLflow's own variables: MLFLOW_BACKEND_STORE_URI, MLFLOW_ARTIFACTS_DESTINATION,
MLFLOW_AUTH_CONFIG_PATH, MLFLOW_FLASK_SERVER_SECRET_KEY, MLFLOW_SERVER_ALLOWED_HOSTS and
MLFLOW_SERVER_CORS_ALLOWED_ORIGINS. Ours:

- MLFLOW_AUTH_ADMIN_PASSWORD_FILE has the password of the administrator. To rotate it, change the
  file and restart.
- RESSMOOTH_DATABASE_URL has the results; reading is enough. Without it, / leads to MLflow.
- RESSMOOTH_TRUSTED_PROXIES are addresses or networks whose X-Forwarded-For is believed.
"""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import uvicorn
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from ressmooth import paths
from ressmooth.errors import ConfigError, RessmoothError, TrackingError
from ressmooth.tracking import front
from ressmooth.tracking.landing import Landing
from ressmooth.tracking.login import HEALTH, LOGGER, Login
from ressmooth.tracking.mirror import Mirror

PASSWORD_FILE = "MLFLOW_AUTH_ADMIN_PASSWORD_FILE"
DATABASE = "MLFLOW_BACKEND_STORE_URI"
ARTIFACTS = "MLFLOW_ARTIFACTS_DESTINATION"
HOSTS = "MLFLOW_SERVER_ALLOWED_HOSTS"
ORIGINS = "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS"
AUTH = "MLFLOW_AUTH_CONFIG_PATH"
SECRET_KEY = "MLFLOW_FLASK_SERVER_SECRET_KEY"
NEEDED = (DATABASE, ARTIFACTS, AUTH, SECRET_KEY, HOSTS, ORIGINS, PASSWORD_FILE)
SHORTEST = 12  # characters of a password; MLflow's rule


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ressmooth.tracking.deployed")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--workers", type=int, default=2)
    # Seconds after which a silent worker is replaced. With uvicorn's five, a busy machine would
    # replace workers while they load MLflow, and none would ever start.
    parser.add_argument("--timeout-worker-healthcheck", type=int, default=60)
    options = parser.parse_args(arguments)
    try:
        prepare()
    except RessmoothError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    proxies = os.environ.get("RESSMOOTH_TRUSTED_PROXIES", "")
    uvicorn.run(
        "ressmooth.tracking.deployed:create_app",
        factory=True,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=proxies,
        log_config=_logging(),
        **vars(options),
    )
    return 0


def prepare() -> None:
    """Check the settings, then bring the accounts and MLflow's database up to date."""
    missing = [name for name in NEEDED if not os.environ.get(name)]
    if missing:
        raise ConfigError(f"set {', '.join(missing)}; docker/mlflow-server shows how")
    password = read_password(Path(os.environ[PASSWORD_FILE]))
    artifacts = os.environ[ARTIFACTS]
    os.environ |= front.environment(os.environ[DATABASE], artifacts, _list(HOSTS), _list(ORIGINS))
    set_admin_password(password)
    os.environ["_MLFLOW_AUTH_ADMIN_BOOTSTRAPPED"] = "true"  # so no worker needs the password
    # creates the tables if there are none, which two workers must not do at once
    Mirror(os.environ[DATABASE], paths.home()).studies()


def read_password(file: Path) -> str:
    """Return the password in a file, without the line break at its end."""
    try:
        password = file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{PASSWORD_FILE} = {str(file)!r}: cannot be read: {error}") from None
    if len(password) < SHORTEST:
        raise ConfigError(
            f"{PASSWORD_FILE} = {str(file)!r}: the password has {len(password)} characters, and "
            f"MLflow asks for at least {SHORTEST}; write a longer one into the file"
        )
    return password


def set_admin_password(password: str) -> None:
    """Create the administrator, or change the stored password if it is another one."""
    from mlflow.exceptions import MlflowException
    from mlflow.server import auth

    name = auth.auth_config.admin_username or "admin"
    try:
        auth.store.init_db(auth.auth_config.database_uri)
        auth.create_admin_user(name, password)
        if not auth.store.authenticate_user(name, password):
            auth.store.update_user(name, password=password)
            print(f"The password of {name} is now the one in its file.", flush=True)
    except MlflowException as error:
        raise TrackingError(f"MLflow's accounts: {error.message}") from None


def create_app() -> ASGIApp:
    """Return the application of one worker."""
    from mlflow.server import app as flask_app
    from mlflow.server import auth

    mlflow = auth.create_app()
    flask_app.before_request(refuse_artifact_location)
    pages = [Route(HEALTH, health), *_pages()]
    login = Login(front.Front(mlflow, pages), has_account)
    return front.protect(login, _list(HOSTS), _list(ORIGINS))


def _pages() -> list[Route]:
    """Return our pages, or without a database of results a way to MLflow's."""
    if not os.environ.get("RESSMOOTH_DATABASE_URL"):
        return [Route("/", lambda _: RedirectResponse(f"{front.MLFLOW}/"))]
    home = paths.home()
    return Landing(home, Mirror(os.environ[DATABASE], home), place="").routes()


def health(request: Request) -> PlainTextResponse:
    """Answer from one of the threads that answer for MLflow, so that a hang of these is seen."""
    return PlainTextResponse("OK")


def has_account(user: str, password: str) -> bool:
    """Tell whether MLflow accepts a user name and password."""
    from mlflow.exceptions import MlflowException
    from mlflow.server import auth

    try:
        return auth._authenticate_cached(user, password) is not None
    except MlflowException as error:
        LOGGER.error("MLflow's accounts cannot be read: %s", error)
        raise TrackingError("MLflow's accounts cannot be read now; try again later.") from None


def refuse_artifact_location() -> Any:
    """Answer requests that choose where artifacts are, which might be the server's secrets."""
    from flask import jsonify, request
    from mlflow.protos.service_pb2 import CreateExperiment
    from mlflow.server.handlers import _get_request_message

    if request.endpoint != "_create_experiment":
        return None
    location = _get_request_message(CreateExperiment()).artifact_location
    if not location:
        return None
    message = f"artifact_location = {location!r}: this server chooses the place; leave it out"
    return jsonify(error_code="INVALID_PARAMETER_VALUE", message=message), 400


def _list(variable: str) -> list[str]:
    return [each.strip() for each in os.environ[variable].split(",") if each.strip()]


def _logging() -> dict[str, Any]:
    """Return uvicorn's configuration with times, and with our log of failed log-ins."""
    config: dict[str, Any] = uvicorn.config.LOGGING_CONFIG
    formats = {
        "default": "%(message)s",
        "access": '%(client_addr)s "%(request_line)s" %(status_code)s',
    }
    for name, text in formats.items():
        config["formatters"][name]["fmt"] = f"%(asctime)s %(levelprefix)s {text}"
    config["loggers"][LOGGER.name] = {"handlers": ["default"], "level": logging.WARNING}
    return config


if __name__ == "__main__":
    sys.exit(main())
