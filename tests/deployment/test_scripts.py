"""The small programs of docker/, run without Docker."""

import json
import runpy
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from helpers.records import free_port

DOCKER = Path(__file__).parents[2] / "docker"


@pytest.fixture
def site():
    """A server on this machine. Its `requests` are what it got, `refuses` makes it answer 500."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            server.requests.append(json.loads(body))
            self.send_response(500 if server.refuses else 200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.refuses = [], False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_failed_backup_is_told_once_until_one_succeeds(site, tmp_path, capfd):
    alarm = runpy.run_path(str(DOCKER / "alarm"))["main"]
    failed = tmp_path / "failed"
    alarm.__globals__.update(FAILED=failed, ALIVE=tmp_path / "alive")
    address = f"http://127.0.0.1:{site.server_port}/secret-token"
    threading.Thread(target=alarm, args=(address, 0.01), daemon=True).start()
    wait_for((tmp_path / "alive").exists)
    assert site.requests == []
    site.refuses = True
    failed.touch()
    wait_for(lambda: len(site.requests) > 2)  # it tries again until it is told
    site.refuses = False
    number = len(site.requests)
    wait_for(lambda: "told the webhook" in capfd.readouterr().err)
    assert number <= len(site.requests) <= number + 2
    assert site.requests[0]["kind"] == "backup"
    assert "docker compose logs backup" in site.requests[0]["text"]
    number = len(site.requests)
    failed.unlink()
    seen = (tmp_path / "alive").stat().st_mtime_ns
    wait_for(lambda: (tmp_path / "alive").stat().st_mtime_ns > seen + 10**8)
    assert len(site.requests) == number
    failed.touch()
    wait_for(lambda: len(site.requests) == number + 1)  # the next failure is news
    assert "secret-token" not in capfd.readouterr().err


def test_a_gate_forwards_bytes_and_answers_its_health_check(site):
    address = f"127.0.0.1:{site.server_port}"
    port = free_port()
    with subprocess.Popen([sys.executable, DOCKER / "gate", address, str(port)]) as gate:
        try:
            wait_for(lambda: not socket.socket().connect_ex(("127.0.0.1", port)))
            with socket.create_connection(("127.0.0.1", port), 5) as health:
                assert health.recv(2) == b"ok"
            body = json.dumps({"x": "y" * 300_000})
            request = f"POST / HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n{body}"
            stranger = ("127.0.0.2", 0)  # not from inside of the container
            with socket.create_connection(("127.0.0.1", port), 5, stranger) as client:
                client.sendall(request.encode())
                assert client.recv(12) == b"HTTP/1.0 200"
            assert site.requests == [json.loads(body)]
        finally:
            gate.terminate()
    assert gate.returncode == 143
