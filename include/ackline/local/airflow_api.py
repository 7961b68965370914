"""A client of Airflow's REST API with the permissions of one user, for the demo and the tests."""

import json
import urllib.error
import urllib.parse
import urllib.request
import uuid
from datetime import datetime
from typing import Any

from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception,
    retry_if_result,
    stop_after_attempt,
    stop_after_delay,
    wait_fixed,
)

from ackline.errors import FatalError

REQUEST_SECONDS = 60.0
TRIES = 3
CONFLICT = 409
"""The HTTP status for a run whose id is there already."""
POLL_SECONDS = 0.5
ENDED = ("success", "failed")
"""The states in which a run stays."""


class ApiError(FatalError):
    """Airflow refused a request. `status` is the HTTP status; 0 if there was no response."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later: the machine was busy, or the database was locked."""
        return self.status == 0 or self.status >= 500


FAILED_FOR_NOW = retry_if_exception(lambda error: isinstance(error, ApiError) and error.transient)


class AirflowApi:
    """The Airflow at `url`, used by one user. The first request fetches a token."""

    def __init__(self, url: str, username: str, password: str) -> None:
        self.url = url
        self.username = username
        self.password = password
        self._token: str | None = None
        # The proxy of the environment can't reach a server of this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def token(self) -> str:
        """Returns a bearer token, which is valid for hours."""
        if self._token is None:
            login = {"username": self.username, "password": self.password}
            self._token = str(self._request("POST", "/auth/token", login, None)["access_token"])
        return self._token

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Returns the response to a request for a path below /api/v2. Raises ApiError on any failure.

        Repeats a request that failed for now, up to twice: the machine may just be busy. A POST does something anew
        each time, so it is made once.
        """
        return self._call(method, path, body, tries=1 if method == "POST" else TRIES)

    def _call(self, method: str, path: str, body: object, tries: int) -> Any:
        wait = wait_fixed(POLL_SECONDS)
        retrying = Retrying(retry=FAILED_FOR_NOW, stop=stop_after_attempt(tries), wait=wait, reraise=True)
        return retrying(lambda: self._request(method, f"/api/v2{path}", body, self.token()))

    def healthy(self, since: datetime) -> bool:
        """Returns whether the database works, and scheduler and DAG processor have sent a heartbeat at or after
        `since`."""
        try:
            health = self._request("GET", "/api/v2/monitor/health", None, None)
        except ApiError:
            return False
        heartbeats = [health[name][f"latest_{name}_heartbeat"] for name in ("scheduler", "dag_processor")]
        alive = all(beat is not None and datetime.fromisoformat(beat) >= since for beat in heartbeats)
        return alive and health["metadatabase"]["status"] == "healthy"

    def wait_for_dag(self, dag_id: str, seconds: float = 180) -> None:
        """Waits until Airflow has parsed the DAG. Raises FatalError with all import errors if it takes too long."""
        not_yet = FAILED_FOR_NOW | retry_if_exception(lambda error: isinstance(error, ApiError) and error.status == 404)
        retrying = Retrying(retry=not_yet, stop=stop_after_delay(seconds), wait=wait_fixed(POLL_SECONDS))
        try:
            retrying(self.call, "GET", f"/dags/{_quoted(dag_id)}")
        except RetryError:
            raise FatalError(
                f"Airflow has no DAG {dag_id} after {seconds:.0f} s; import errors: {self.import_errors()}"
            ) from None

    def unpause(self, dag_id: str, seconds: float = 180) -> None:
        """Lets Airflow schedule the DAG, after `wait_for_dag`."""
        self.wait_for_dag(dag_id, seconds)
        self.call("PATCH", f"/dags/{_quoted(dag_id)}", {"is_paused": False})

    def pause(self, dag_id: str) -> None:
        """Pauses the DAG: Airflow starts no further run of it, and does not go on with a run that is under way."""
        self.call("PATCH", f"/dags/{_quoted(dag_id)}", {"is_paused": True})

    def trigger(self, dag_id: str, conf: dict[str, object] | None = None) -> str:
        """Starts a manual run without a data interval, and returns its run id.

        The id is made here: a request that is made again, after one without a response, starts no second run.
        """
        run_id = f"manual__{uuid.uuid4()}"
        body = {"logical_date": None, "dag_run_id": run_id, "conf": conf or {}}
        try:
            self._call("POST", f"/dags/{_quoted(dag_id)}/dagRuns", body, TRIES)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        return run_id

    def runs(self, dag_id: str) -> dict[str, str]:
        """Returns the state of each run by run id, oldest first."""
        response = self.call("GET", f"/dags/{_quoted(dag_id)}/dagRuns?limit=100&order_by=run_after")
        return {str(run["dag_run_id"]): str(run["state"]) for run in response["dag_runs"]}

    def run_state(self, dag_id: str, run_id: str) -> str:
        """Returns queued, running, success or failed."""
        return str(self.call("GET", _run(dag_id, run_id))["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """Returns the state of each task by task id; None for a task that is not scheduled yet."""
        response = self.call("GET", f"{_run(dag_id, run_id)}/taskInstances")
        return {str(task["task_id"]): task["state"] for task in response["task_instances"]}

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        """Returns the log of a task, one event a line."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_quoted(task_id)}/logs/{attempt}?full_content=true"
        return "\n".join(str(event.get("event", event)) for event in self.call("GET", path)["content"])

    def wait(self, dag_id: str, run_id: str, timeout: float) -> str:
        """Waits until the run has ended, and returns its last state. Raises TimeoutError with the tasks' states."""
        not_ended = FAILED_FOR_NOW | retry_if_result(lambda state: state not in ENDED)
        retrying = Retrying(retry=not_ended, stop=stop_after_delay(timeout), wait=wait_fixed(POLL_SECONDS))
        try:
            return str(retrying(self.run_state, dag_id, run_id))
        except RetryError:
            tasks = self.task_states(dag_id, run_id)
            raise TimeoutError(f"run {run_id} of {dag_id} has not ended after {timeout:.0f} s: {tasks}") from None

    def clear(self, dag_id: str, run_id: str, *task_ids: str, downstream: bool = True) -> None:
        """Makes Airflow run these tasks of a run again, whatever their state; without task ids, all tasks.

        With `downstream`, also the tasks after them.
        """
        body: dict[str, object] = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": False,
            "reset_dag_runs": True,
            "include_downstream": downstream,
        }
        if task_ids:
            body["task_ids"] = list(task_ids)
        self.call("POST", f"/dags/{_quoted(dag_id)}/clearTaskInstances", body)

    def import_errors(self) -> dict[str, str]:
        """Returns the stack trace of each DAG file that can't be imported, by file name."""
        response = self.call("GET", "/importErrors?limit=100")
        return {str(error["filename"]): str(error["stack_trace"]) for error in response["import_errors"]}

    def _request(self, method: str, path: str, body: object, token: str | None) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=REQUEST_SECONDS) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")[:300]
            raise ApiError(f"{method} {path}: {error.code} {reason}", error.code) from None
        except OSError as error:
            raise ApiError(f"{method} {path}: {error}", 0) from error
        return json.loads(content) if content else None


def _run(dag_id: str, run_id: str) -> str:
    return f"/dags/{_quoted(dag_id)}/dagRuns/{_quoted(run_id)}"


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")
