"""The deployed MLflow with accounts, as a process, and requests to it."""

import base64
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from typing import NamedTuple

from helpers.records import free_port, wait_for

PASSWORD = "a long admin password"
INI = """
[mlflow]
default_permission = NO_PERMISSIONS
database_uri = {accounts}
admin_username = admin
authorization_function = mlflow.server.auth:authenticate_request_basic_auth
auth_cache_ttl_seconds = 60
"""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str


class Deployed:
    """`python -m ressmooth.tracking.deployed`."""

    def __init__(self, directory, tracking=None, accounts=None, **environment):
        self.directory, self.port = directory, free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.password_file, self.log = directory / "password", directory / "deployed.log"
        self.password_file.write_text(f"{PASSWORD}\n")
        accounts = accounts or f"sqlite:///{directory}/accounts.db"
        (directory / "auth.ini").write_text(INI.format(accounts=accounts))
        own = {
            "MLFLOW_BACKEND_STORE_URI": tracking or f"sqlite:///{directory}/tracking.db",
            "MLFLOW_ARTIFACTS_DESTINATION": (directory / "artifacts").as_uri(),
            "MLFLOW_AUTH_CONFIG_PATH": str(directory / "auth.ini"),
            "MLFLOW_FLASK_SERVER_SECRET_KEY": "key",
            "MLFLOW_SERVER_ALLOWED_HOSTS": f"127.0.0.1:{self.port},localhost:{self.port}",
            "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": self.address,
            "MLFLOW_AUTH_ADMIN_PASSWORD_FILE": str(self.password_file),
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "RESSMOOTH_HOME": str(directory),
        }
        unset = ("MLFLOW_TRACKING_URI", "RESSMOOTH_DATABASE_URL")
        inherited = {k: v for k, v in os.environ.items() if k not in unset}
        self.environment = inherited | own | environment
        self.process = None

    def command(self, *options):
        program = [sys.executable, "-m", "ressmooth.tracking.deployed"]
        return [*program, "--port", str(self.port), *(options or ("--workers", "1"))]

    def start(self, *options):
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(
                self.command(*options),
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(f"{self.address}/health", self.process)
        return self

    def run(self):
        """Start it where it ends by itself. Return the process."""
        return subprocess.run(
            self.command(), env=self.environment, capture_output=True, text=True, timeout=120
        )

    def stop(self):
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, 9)
            self.process.wait()

    def ask(self, path, user="admin", password=PASSWORD, body=None, timeout=60, **headers):
        """Send a request, with a JSON body if there is one. `user` may be None."""
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if user is not None:
            login = base64.b64encode(f"{user}:{password}".encode()).decode()
            headers["Authorization"] = f"Basic {login}"
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        request = urllib.request.Request(self.address + path, data, headers)
        try:
            with OPENER.open(request, timeout=timeout) as answer:
                return Answer(
                    answer.status, dict(answer.headers), answer.read().decode(errors="replace")
                )
        except urllib.error.HTTPError as error:
            return Answer(error.code, dict(error.headers), error.read().decode())


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


OPENER = urllib.request.build_opener(_NoRedirect)
