"""The client of Airflow's REST API on a busy machine: what fails for now is asked again, and nothing is done twice."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from ackline.local import airflow_api
from ackline.local.airflow_api import AirflowApi, ApiError

BUSY, NO_RESPONSE = 500, 0


class Stub(ThreadingHTTPServer):
    """An Airflow whose next responses have these statuses; 200 without one. Keeps the requests, but those of logins."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.statuses: list[int] = []
        self.requests: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(BaseHTTPRequestHandler):
    server: Stub

    def answer(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path != "/auth/token":
            self.server.requests.append((self.command, body))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if status == NO_RESPONSE:
            self.close_connection = True
            return
        content = json.dumps({"access_token": "token", "state": "running"}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PATCH = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    monkeypatch.setattr(airflow_api, "POLL_SECONDS", 0)
    with Stub() as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def api(stub: Stub) -> AirflowApi:
    """A client that has logged in."""
    made = AirflowApi(stub.url, "admin", "password")
    made.token()
    return made


@pytest.mark.parametrize("failure", [BUSY, NO_RESPONSE])
def test_a_question_and_a_mark_are_asked_again(stub: Stub, api: AirflowApi, failure: int) -> None:
    stub.statuses = [failure, failure]
    assert api.run_state("orders", "1") == "running"
    stub.statuses = [failure]
    api.pause("orders")
    assert [method for method, _ in stub.requests] == ["GET"] * 3 + ["PATCH"] * 2


def test_a_request_that_airflow_refuses_is_made_once(stub: Stub, api: AirflowApi) -> None:
    stub.statuses = [403]
    with pytest.raises(ApiError, match="403"):
        api.run_state("orders", "1")
    assert len(stub.requests) == 1


@pytest.mark.parametrize("failure", [BUSY, NO_RESPONSE])
def test_a_run_is_triggered_once_although_the_response_is_lost(stub: Stub, api: AirflowApi, failure: int) -> None:
    """Airflow has made the run, and refuses a second one of the same id."""
    stub.statuses = [failure, 409]
    run = api.trigger("orders")
    assert [(method, body["dag_run_id"]) for method, body in stub.requests] == [("POST", run)] * 2


def test_tasks_are_cleared_once(stub: Stub, api: AirflowApi) -> None:
    """A task that has begun again meanwhile would be cleared again."""
    stub.statuses = [BUSY]
    with pytest.raises(ApiError, match="500"):
        api.clear("orders", "1")
    assert len(stub.requests) == 1
