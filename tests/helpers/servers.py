"""MLflow servers for tests, and HTTP servers that imitate a broken MLflow."""

import http.server
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from helpers.records import free_port, wait_for


class Server:
    """`mlflow server` with one worker."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.port = directory, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", f"sqlite:///{self.directory / 'server.db'}"]
        command += ["--artifacts-destination", str(self.directory / "artifacts")]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(self.directory / "log", "a") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **quiet},
                stdout=log,
                stderr=log,
                cwd=self.directory,
                start_new_session=True,
            )
        wait_for(f"{self.uri}/health", self.process)

    def stop(self) -> None:
        os.killpg(self.process.pid, 9)
        self.process.wait()


@contextmanager
def answering(status, body=b"", *, hangs=False, port=0):
    """Serve `status` and `body` for every request, or never answer if it `hangs`."""
    closing = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            if hangs:
                closing.wait()
                return
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = answer

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    closing.set()
    server.shutdown()
    server.server_close()


@contextmanager
def nothing():
    """Yield an address where no server listens."""
    yield f"127.0.0.1:{free_port()}"
