"""What tests and the demo ask of a running Airflow, over its REST API and as a user would."""

import json
import urllib.error
import urllib.parse
import urllib.request
from datetime import datetime
from typing import Any

from ackline.errors import FatalError
from ackline.local.processes import wait_until

REQUEST_SECONDS = 30.0
ENDED = ("success", "failed")


class ApiError(FatalError):
    """Airflow refused a request; `status` is the HTTP status, 0 where there was no answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status

    @property
    def passing(self) -> bool:
        """Whether the same question may be answered later: a busy machine, a locked database."""
        return self.status == 0 or self.status >= 500


class AirflowApi:
    """One user's view of the Airflow at `url`. A token is fetched with the first request."""

    def __init__(self, url: str, username: str, password: str) -> None:
        self.url = url
        self.username = username
        self.password = password
        self._token: str | None = None
        # A proxy meant for the world outside has no way to a server of this machine.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def token(self) -> str:
        """A bearer token, valid for hours."""
        if self._token is None:
            login = {"username": self.username, "password": self.password}
            self._token = str(self._request("POST", "/auth/token", login, None)["access_token"])
        return self._token

    def call(self, method: str, path: str, body: object = None) -> Any:
        """One request to a path below /api/v2, and its answer. Raises ApiError on anything but success."""
        return self._request(method, f"/api/v2{path}", body, self.token())

    def healthy(self, since: datetime) -> bool:
        """Whether the database is well, and the scheduler and the DAG processor have given a sign of life since."""
        try:
            health = self._request("GET", "/api/v2/monitor/health", None, None)
        except ApiError:
            return False
        signs = [health[name][f"latest_{name}_heartbeat"] for name in ("scheduler", "dag_processor")]
        alive = all(sign is not None and datetime.fromisoformat(sign) >= since for sign in signs)
        return alive and health["metadatabase"]["status"] == "healthy"

    def wait_for_dag(self, dag_id: str, seconds: float = 60) -> None:
        """Wait until the DAG is known. Raises FatalError, with the import errors there are, if it never is."""

        def known() -> bool:
            try:
                self.call("GET", f"/dags/{_quoted(dag_id)}")
            except ApiError as error:
                if error.status != 404 and not error.passing:
                    raise
                return False
            return True

        if not wait_until(known, seconds):
            raise FatalError(
                f"Airflow knows no DAG {dag_id} after {seconds:.0f} s; import errors: {self.import_errors()}"
            )

    def unpause(self, dag_id: str, seconds: float = 60) -> None:
        """Let the DAG be scheduled, once it is known: see `wait_for_dag`."""
        self.wait_for_dag(dag_id, seconds)
        self.call("PATCH", f"/dags/{_quoted(dag_id)}", {"is_paused": False})

    def trigger(self, dag_id: str, conf: dict[str, object] | None = None) -> str:
        """Start a run by hand, without a data interval; its run id."""
        body = {"logical_date": None, "conf": conf or {}}
        return str(self.call("POST", f"/dags/{_quoted(dag_id)}/dagRuns", body)["dag_run_id"])

    def runs(self, dag_id: str) -> dict[str, str]:
        """The state of each run, by run id, oldest first."""
        answer = self.call("GET", f"/dags/{_quoted(dag_id)}/dagRuns?limit=100&order_by=run_after")
        return {str(run["dag_run_id"]): str(run["state"]) for run in answer["dag_runs"]}

    def run_state(self, dag_id: str, run_id: str) -> str:
        """queued, running, success or failed."""
        return str(self.call("GET", _run(dag_id, run_id))["state"])

    def task_states(self, dag_id: str, run_id: str) -> dict[str, str | None]:
        """The state of each task, by task id; None for one that was not scheduled yet."""
        answer = self.call("GET", f"{_run(dag_id, run_id)}/taskInstances")
        return {str(task["task_id"]): task["state"] for task in answer["task_instances"]}

    def log(self, dag_id: str, run_id: str, task_id: str, attempt: int = 1) -> str:
        """What a task printed, one event a line."""
        path = f"{_run(dag_id, run_id)}/taskInstances/{_quoted(task_id)}/logs/{attempt}?full_content=true"
        return "\n".join(str(event.get("event", event)) for event in self.call("GET", path)["content"])

    def wait(self, dag_id: str, run_id: str, timeout: float) -> str:
        """Wait until the run has ended: its last state. Raises TimeoutError with the tasks' states."""
        state = ""

        def ended() -> bool:
            nonlocal state
            try:
                state = self.run_state(dag_id, run_id)
            except ApiError as error:
                if not error.passing:
                    raise
            return state in ENDED

        if not wait_until(ended, timeout, poll_seconds=0.5):
            tasks = self.task_states(dag_id, run_id)
            raise TimeoutError(f"run {run_id} of {dag_id} is {state} after {timeout:.0f} s; its tasks: {tasks}")
        return state

    def clear(self, dag_id: str, run_id: str, *task_ids: str) -> None:
        """Have these tasks of a run, or all, run again whatever their state."""
        body: dict[str, object] = {
            "dry_run": False,
            "dag_run_id": run_id,
            "only_failed": False,
            "reset_dag_runs": True,
            "include_downstream": True,
        }
        if task_ids:
            body["task_ids"] = list(task_ids)
        self.call("POST", f"/dags/{_quoted(dag_id)}/clearTaskInstances", body)

    def import_errors(self) -> dict[str, str]:
        """The reason, by file, for each DAG file that can't be read."""
        answer = self.call("GET", "/importErrors?limit=100")
        return {str(error["filename"]): str(error["stack_trace"]) for error in answer["import_errors"]}

    def _request(self, method: str, path: str, body: object, token: str | None) -> Any:
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=REQUEST_SECONDS) as answer:
                content = answer.read()
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
