"""The deployed MLflow as a process, with real accounts: log-in, origins, artifacts, passwords."""

import time

import psutil
import pytest
from helpers.deployed import PASSWORD, Deployed
from helpers.launch import wait_for
from helpers.records import open_study, train_all

from ressmooth.store import open_store

SEARCH = "/api/2.0/mlflow/experiments/search?max_results=10"
CREATE = "mlflow/experiments/create"
PAGES = ("/", "/queue", "/report/seen", "/curves/seen", "/mlflow", "/mlflow/", SEARCH, "/version")
ANNA = {"user": "anna", "password": "anna's password"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A server on SQLite with an account for anna, and the results of a study."""
    directory = tmp_path_factory.mktemp("deployed")
    results = f"sqlite:///{directory}/results.db"
    store = open_store(results)
    train_all(store, open_study(store, "seen", seeds=1), directory)
    store.close()
    server = Deployed(
        directory, RESSMOOTH_DATABASE_URL=results, RESSMOOTH_TRUSTED_PROXIES="127.0.0.1"
    )
    server.start()
    account = {"username": ANNA["user"], "password": ANNA["password"]}
    assert server.ask("/api/2.0/mlflow/users/create", body=account).status == 200
    yield server
    server.stop()


def test_no_page_without_a_log_in(server):
    assert server.ask("/health", None).text == "OK"
    for path in PAGES:
        answer = server.ask(path, None)
        assert answer.status == 401 and "Basic" in answer.headers["www-authenticate"], path
        assert server.ask(path, user=f"nobody {path}").status == 401, path
        assert server.ask(path).status in (200, 307, 404), path
    assert server.ask("/", **ANNA).status == 200


def test_the_first_page_shows_studies_and_leads_to_mlflow(server):
    page = server.ask("/", **ANNA)
    assert "3 of 3 recorded runs are done" in page.text and 'href="/mlflow/#/exp' in page.text
    assert str(server.directory) not in page.text  # readers are elsewhere
    assert page.headers["x-frame-options"] == "SAMEORIGIN"
    assert "<title>MLflow</title>" in server.ask("/mlflow/").text
    for path in (SEARCH, f"/mlflow{SEARCH}"):
        assert "Default" in server.ask(path).text
    assert server.ask("/", Host="evil.example").status == 403


def test_only_configured_origins_may_change_something(server):
    def create(name, origin):
        return server.ask(f"/api/2.0/{CREATE}", body={"name": name}, Origin=origin).status

    assert create("own", server.address) == 200
    for origin in ("http://localhost:9999", "http://127.0.0.1:1", "https://evil.example", "null"):
        assert create("foreign", origin) == 403, origin
        headers = server.ask(SEARCH, Origin=origin).headers
        assert headers.get("access-control-allow-origin") != origin
    assert "foreign" not in server.ask(SEARCH).text


PLACES = ("file:///run/secrets", "/run/secrets", "mlflow-artifacts:/0", "s3://bucket", " ")


@pytest.mark.parametrize("account", ({}, ANNA), ids=("admin", "anna"))
def test_the_server_chooses_where_artifacts_are(server, account):
    for api in ("/api/2.0/", "/ajax-api/2.0/", "/mlflow/ajax-api/2.0/", "/mlflow/api/2.0/"):
        for key in ("artifact_location", "artifactLocation"):
            for place in PLACES:
                answer = server.ask(api + CREATE, body={"name": "stolen", key: place}, **account)
                assert answer.status == 400, (api, key, place)
                assert f"{place!r}: this server chooses the place" in answer.text
    for path in (f"/api/3.0/{CREATE}", f"/api/2.0/{CREATE}/", f"//api/2.0/{CREATE}"):
        body = {"name": "stolen", "artifact_location": PLACES[0]}
        assert server.ask(path, body=body, **account).status >= 400, path
    assert "stolen" not in server.ask(SEARCH).text
    answer = server.ask(f"/api/2.0/{CREATE}", body={"name": f"fine {account}"}, **account)
    assert answer.status == 200


def test_a_model_cannot_come_from_the_servers_files(server):
    """MLflow itself refuses these; an upgrade should too."""
    server.ask("/api/2.0/mlflow/registered-models/create", body={"name": "m"}, **ANNA)
    for source in (*PLACES[:3], "FILE:///run/secrets", "mlflow-artifacts:/../x", "http://db/x"):
        body = {"name": "m", "source": source}
        answer = server.ask("/api/2.0/mlflow/model-versions/create", body=body, **ANNA)
        assert answer.status == 400, source


def test_failed_log_ins_are_slowed_down_and_logged_with_the_clients_address(server):
    client = {"X_Forwarded_For": "192.0.2.7", "user": "anna"}
    answers = [server.ask("/", password=f"wrong {n}", **client) for n in range(6)]
    assert [answer.status for answer in answers] == [401] * 5 + [429]
    assert 1 <= int(answers[-1].headers["retry-after"]) <= 30
    assert server.ask("/", **ANNA).status == 200  # from another address
    log = server.log.read_text()
    assert "failed log-in of user 'anna' from 192.0.2.7" in log and "wrong" not in log


def test_a_short_password_of_a_new_account_says_why(server):
    account = {"username": "carl", "password": "eleven char"}
    answer = server.ask("/api/2.0/mlflow/users/create", body=account)
    assert answer.status == 400 and "12 characters" in answer.text


@pytest.mark.parametrize("password", ("short", "eleven char\n"))
def test_a_password_that_is_too_short_says_why(tmp_path, password):
    server = Deployed(tmp_path)
    server.password_file.write_text(password)
    done = server.run()
    length = len(password.rstrip("\n"))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert f"the password has {length} characters, and MLflow asks for at least 12" in done.stderr
    assert str(server.password_file) in done.stderr
    assert not (tmp_path / "accounts.db").exists()


def test_what_is_missing_is_named(tmp_path):
    server = Deployed(tmp_path, MLFLOW_FLASK_SERVER_SECRET_KEY="")
    done = server.run()
    assert done.returncode == 2
    assert done.stderr.startswith("error: set MLFLOW_FLASK_SERVER_SECRET_KEY;")
    server = Deployed(tmp_path, MLFLOW_AUTH_ADMIN_PASSWORD_FILE=str(tmp_path / "nope"))
    done = server.run()
    assert done.returncode == 2 and "cannot be read" in done.stderr


@pytest.mark.slow
def test_the_password_in_the_file_is_the_one_that_counts(tmp_path):
    server = Deployed(tmp_path).start()
    assert server.ask("/").status == 307  # to MLflow, because no results are configured
    server.stop()
    server.password_file.write_text("another long password\n")
    try:
        server.start()
        assert server.ask("/").status == 401
        assert server.ask("/", password="another long password").status == 307
        assert "The password of admin is now the one in its file." in server.log.read_text()
        assert PASSWORD not in server.log.read_text()
    finally:
        server.stop()


@pytest.mark.slow
def test_headers_of_strangers_are_not_believed(tmp_path):
    server = Deployed(tmp_path).start()
    try:
        answers = [
            server.ask("/", password="wrong", X_Forwarded_For=f"192.0.2.{n}").status
            for n in range(6)
        ]
        assert answers == [401] * 5 + [429]
        assert "failed log-in of user 'admin' from 127.0.0.1" in server.log.read_text()
    finally:
        server.stop()


def workers_of(server):
    children = psutil.Process(server.process.pid).children()
    return [child for child in children if "spawn_main" in " ".join(child.cmdline())]


@pytest.mark.slow
def test_a_worker_that_a_busy_machine_keeps_waiting_is_not_replaced(tmp_path):
    """uvicorn gives it five seconds. Where loading MLflow takes longer, none would ever start."""
    server = Deployed(tmp_path).start("--workers", "2")
    try:
        before = workers_of(server)
        for worker in before:
            worker.suspend()
        time.sleep(7)
        for worker in before:
            worker.resume()
        wait_for(lambda: server.ask("/").status == 307, 60)
        assert workers_of(server) == before
    finally:
        server.stop()


@pytest.mark.slow
def test_a_frozen_server_is_seen_and_a_frozen_worker_replaced(tmp_path):
    server = Deployed(tmp_path).start("--workers", "2", "--timeout-worker-healthcheck", "5")
    try:
        frozen = workers_of(server)
        assert len(frozen) == 2
        for worker in frozen:
            worker.suspend()
        with pytest.raises(OSError):
            server.ask("/health", None, timeout=1)
        wait_for(lambda: not any(worker.is_running() for worker in frozen), 60)
        wait_for(lambda: server.ask("/").status == 307, 120)
    finally:
        server.stop()


@pytest.fixture
def databases(postgres, postgres_url):
    """MLflow's two empty databases, and the results for a role that may only read them."""
    import psycopg

    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for statement in (
            "CREATE DATABASE tracking",
            "CREATE DATABASE accounts",
            "CREATE ROLE reader LOGIN",
            "GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader",
        ):
            connection.execute(statement)
        yield *map(postgres.get_uri, ("tracking", "accounts")), _as_reader(postgres_url)
        for statement in (
            "DROP OWNED BY reader",
            "DROP ROLE reader",
            "DROP DATABASE tracking WITH (FORCE)",
            "DROP DATABASE accounts WITH (FORCE)",
        ):
            connection.execute(statement)


def _as_reader(url):
    return url.replace("//postgres:", "//reader:")


@pytest.mark.slow
def test_postgresql_and_a_role_that_only_reads(tmp_path, postgres_url, databases):
    store = open_store(postgres_url)
    train_all(store, open_study(store, "seen", seeds=1), tmp_path)
    store.close()
    tracking, accounts, results = databases
    server = Deployed(tmp_path, tracking, accounts, RESSMOOTH_DATABASE_URL=results)
    try:
        server.start()
        page = server.ask("/")
        assert page.status == 200 and "3 of 3 recorded runs are done" in page.text
        assert server.ask("/queue").status == 200
        report = server.ask("/report/seen")
        assert report.status == 200 and "<svg" in report.text
        assert server.ask("/curves/seen").status == 404  # not delivered to MLflow
    finally:
        server.stop()
