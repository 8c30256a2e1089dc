"""MLflow servers for tests, `ressmooth ui`, and HTTP servers that imitate MLflow or Slack."""

import http.server
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
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


class Ui:
    """`ressmooth ui`, and what it prints."""

    def __init__(self, home):
        self.port, self.log = free_port(), home / "ui.log"
        self.address = f"http://127.0.0.1:{self.port}"
        command = [sys.executable, "-m", "ressmooth.cli", "ui", "--home", home]
        command += ["--port", str(self.port)]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        while "Ctrl-C" not in self.log.read_text():
            assert self.process.poll() is None, self.log.read_text()
            time.sleep(0.05)

    def status(self, path, host=None):
        """Return the status of a page for a request with this Host header."""
        headers = {"Host": host} if host else {}
        try:
            request = urllib.request.Request(self.address + path, headers=headers)
            return urllib.request.urlopen(request, timeout=60).status
        except urllib.error.HTTPError as error:
            return error.code

    def stop(self, number):
        """Send a signal. Return the exit code and the processes that are left."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        os.kill(self.process.pid, number)
        return self.process.wait(60), [child for child in children if child.is_running()]

    def kill(self):
        if self.process.poll() is None:
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


class Receiver:
    """An HTTP server in place of Slack. It keeps the bodies that it accepts.

    `answers` are the statuses of the next requests, then all are 200. A status of 0 closes the
    connection without an answer. `moved_to` is where a redirect leads.
    """

    def __init__(self, *answers, port=0, moved_to=None):
        self.answers, self.received, self.requests = list(answers), [], []
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                receiver.requests.append((self.command, self.path, dict(self.headers)))
                status = receiver.answers.pop(0) if receiver.answers else 200
                if not status:
                    return
                if status == 200:
                    receiver.received.append(json.loads(body))
                self.send_response(status, f"reason {self.path}")
                if moved_to:
                    self.send_header("Location", moved_to)
                self.send_header("Content-Length", "0")
                self.end_headers()

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        self.address = f"http://127.0.0.1:{self.port}/services/sekret"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def forwarding(port, to):
    """Forward connections to `port` to a server on another one."""

    class Forward(socketserver.BaseRequestHandler):
        def handle(self):
            with socket.create_connection(("127.0.0.1", to)) as server:
                back = threading.Thread(target=copy, args=(server, self.request), daemon=True)
                back.start()
                copy(self.request, server)
                back.join()

    def copy(source, target):
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    class Forwarder(socketserver.ThreadingTCPServer):
        allow_reuse_address = daemon_threads = True
        block_on_close = False

    with Forwarder(("127.0.0.1", port), Forward) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield
        server.shutdown()


@contextmanager
def endless():
    """Serve answers that never end."""
    over = threading.Event()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while not over.is_set():
                    self.wfile.write(b" " * 2**16)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"127.0.0.1:{server.server_port}"
    over.set()
    server.shutdown()
    server.server_close()


@contextmanager
def nothing():
    """Yield an address where no server listens."""
    yield f"127.0.0.1:{free_port()}"
