"""The routes of the page, and the page as Airflow mounts it.

Airflow serves a plugin's application without authentication. So each route here requires a login, and the right to read
the pipeline's DAG; without that right the answer is the same 404 as for a pipeline that does not exist. All routes are
GET: a request that changes something would need protection against forged ones.
"""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse

from ackline.airflow.dags import DAG_PREFIX, page_path, pipeline_of_dag
from ackline.errors import AcklineError
from ackline.ledger.explain import OffsetState
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingKind
from ackline.ledger.states import State
from ackline.ledger.turns import LIVE
from ackline.ui import failing, pages, readings
from ackline.ui.filters import Filters, Listed, tags_of
from ackline.ui.links import RECENT_HOURS, ActionMaker, Addresses
from ackline.ui.readings import LaneReading

PIPELINES_A_PAGE = 100
TAGS_OF = 1_000
"""Of so many pipelines the list offers every tag; of more, those of the pipelines that it shows."""
NOT_IN_LOG = (OffsetState.GAP, Outcome.EXPIRED, Outcome.COMPACTED)
"""The states of an offset at which the log has no record, so no backfill can handle one."""
HEADERS = {
    "Content-Security-Policy": pages.POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NOT_FOUND = "Ackline has nothing here, or you may not read the DAG."

# FastAPI's own pages of documentation are off: nothing would authenticate them.
app = FastAPI(
    title="Ackline",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    default_response_class=HTMLResponse,
    dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
)

Topic = Annotated[str, Query(max_length=249)]
Partition = Annotated[int, Query(ge=0, lt=2**31)]
Offset = Annotated[int, Query(ge=0, lt=2**62)]
Lane = Annotated[str, Query(max_length=100)]
Start = Annotated[int, Query(ge=0, lt=2**31)]


@app.middleware("http")
async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(HEADERS)
    return response


@app.exception_handler(AcklineError)
async def _error_page(request: Request, error: AcklineError) -> HTMLResponse:
    return HTMLResponse(pages.problem("The tables can't be read", str(error)), status_code=500)


@app.exception_handler(404)
async def _not_found_page(request: Request, error: Exception) -> HTMLResponse:
    return HTMLResponse(pages.problem("Not found", NOT_FOUND), status_code=404)


@app.exception_handler(RequestValidationError)
async def _bad_request_page(request: Request, error: RequestValidationError) -> HTMLResponse:
    names = ", ".join(sorted({str(detail["loc"][1]) for detail in error.errors()}))
    return HTMLResponse(pages.problem("Not a valid address", f"Correct {names} in the address."), status_code=422)


def _readable_dags(user: GetUserDep) -> set[str]:
    """Returns the ids of the DAGs that the user may read."""
    return get_auth_manager().get_authorized_dag_ids(user=user, method="GET")


DagIds = Annotated[set[str], Depends(_readable_dags)]


def _readable_pipeline(name: str, dag_ids: DagIds) -> str:
    """Returns the name of the pipeline in the address. Answers 404 if the user may not read its DAG."""
    if f"{DAG_PREFIX}{name}" not in dag_ids:
        raise HTTPException(404)
    return name


Pipeline = Annotated[str, Depends(_readable_pipeline)]


def _reading(name: Pipeline, lane: Lane = LIVE) -> LaneReading:
    """Returns the lane in the address. Answers 404 if it has no tables."""
    _check_lane(name, lane)
    return readings.read_lane(name, lane)


def _check_lane(name: str, lane: str) -> None:
    """Answers 404 for a lane without tables: its name becomes part of a path only if a folder has it."""
    if lane != LIVE and lane not in readings.lanes_with_tables(name):
        raise HTTPException(404)


Reading = Annotated[LaneReading, Depends(_reading)]


def _addresses() -> Addresses:
    page = page_path()
    return Addresses(page, page.removesuffix("/ackline/"))


def _actions(reading: LaneReading, dag_ids: set[str]) -> ActionMaker:
    return ActionMaker(reading.name, reading.lane, dag_ids, _addresses())


def _filters(
    q: Annotated[str, Query(max_length=250)] = "",
    tag: Annotated[str, Query(pattern="^[a-z0-9_-]{0,100}$")] = "",
    state: State | Literal[""] = "",
) -> Filters:
    """Returns which pipelines the address asks for."""
    return Filters(q, tag, state or None)


Chosen = Annotated[Filters, Depends(_filters)]


@app.get("/")
def index(dag_ids: DagIds, filters: Chosen, start: Start = 0) -> str:
    """Show the pipelines that the user may read, the worst first."""
    addresses = _addresses()
    listed = _listed(dag_ids, filters, start, addresses.index)
    return pages.index(readings.read_lanes(listed.names), addresses, datetime.now(UTC), listed)


def _listed(dag_ids: set[str], filters: Filters, start: int, address: str) -> Listed:
    """Returns PIPELINES_A_PAGE of the chosen pipelines, from number `start` on."""
    readable = [dag.removeprefix(DAG_PREFIX) for dag in dag_ids if dag.startswith(DAG_PREFIX)]
    names, end = filters.names(readable), start + PIPELINES_A_PAGE
    more = f"{address}{filters.query(end)}" if end < len(names) else None
    tags = tags_of(readable if len(readable) <= TAGS_OF else names[start:end])
    return Listed(filters, names[start:end], len(readable), tags, address, more)


@app.get("/failures")
def all_failures(dag_ids: DagIds, filters: Chosen, start: Start = 0) -> str:
    """Show the failing records of the pipelines that the user may read, by error class and place."""
    addresses, broken, lanes = _addresses(), list[tuple[str, str]](), list[LaneReading]()
    listed = _listed(dag_ids, filters, start, addresses.all_failures)
    for reading in readings.read_lanes(listed.names):
        if not filters.shows(reading.state if isinstance(reading, LaneReading) else State.UNKNOWN):
            continue
        if isinstance(reading, LaneReading):
            lanes.append(reading)
        else:
            broken.append(reading)
    return pages.all_failures(failing.failures_everywhere(lanes), broken, addresses, datetime.now(UTC), listed)


@app.get("/pipelines/{name}")
def pipeline(reading: Reading, dag_ids: DagIds, start: Start = 0) -> str:
    """Show one lane of a pipeline."""
    lanes = readings.lanes_with_tables(reading.name)
    recent = reading.is_behind or reading.met_records_since(reading.now - timedelta(hours=RECENT_HOURS))
    groups = failing.failures(reading)
    actions = _actions(reading, dag_ids).of_pipeline(
        reading.pending[PendingKind.RETRY] > 0, recent, failing=reading.state is State.FAILING,
        dead=any(group.kind == Outcome.DEAD.value for group in groups), paused=reading.is_paused,
        new_code=reading.has_new_code,
    )  # fmt: skip
    steps = readings.read_steps(reading)
    topology = readings.read_topology(reading.name) if steps is not None else None
    return pages.pipeline(reading, lanes, groups, actions, _addresses(), start, steps, topology)


@app.get("/pipelines/{name}/partition")
def partition(reading: Reading, dag_ids: DagIds, topic: Topic, partition: Partition) -> str:
    """Show one partition of a lane."""
    tp = TopicPartition(topic, partition)
    for part in reading.partitions:
        if part.tp == tp:
            waiting = part.settled.state.pending_by_kind()[PendingKind.RETRY] > 0
            actions = _actions(reading, dag_ids).of_partition(
                tp, part.floor, part.complete_to, waiting, part.held_by is not None, part.log_start or 0
            )
            return pages.partition(reading, part, actions, _addresses())
    raise HTTPException(404)


@app.get("/pipelines/{name}/failures")
def failures(
    reading: Reading,
    dag_ids: DagIds,
    kind: Annotated[str, Query(max_length=30)],
    error_class: Annotated[str, Query(max_length=1000)] = "",
    step: Annotated[str, Query(max_length=1000)] = "",
) -> str:
    """Show failing records of one error class, or the newest attempts that failed in a step."""
    if step:
        return pages.failing(reading, kind, "", failing.records_at_step(reading, step), [], _addresses(), step=step)
    group = failing.failure_of(failing.failures(reading, by_place=False), kind, error_class)
    records = failing.failing_records(reading, kind, error_class)
    still_fails = reading.state is State.FAILING and not reading.is_paused
    actions = _actions(reading, dag_ids).of_failures(kind, error_class, failing=still_fails) if group else []
    return pages.failing(reading, kind, error_class, records, actions, _addresses(), group)


@app.get("/pipelines/{name}/record")
def record(reading: Reading, dag_ids: DagIds, topic: Topic, partition: Partition, offset: Offset) -> str:
    """Show what became of one record."""
    tp = TopicPartition(topic, partition)
    explained = readings.read_record(reading, tp, offset)
    pending = explained.pending if explained is not None else None
    waiting = pending is not None and pending.kind is PendingKind.RETRY
    read = [part for part in reading.partitions if part.tp == tp and offset < part.complete_to]
    in_log = any(offset >= (part.log_start or 0) for part in read)
    exists = in_log and explained is not None and explained.state not in NOT_IN_LOG
    actions = _actions(reading, dag_ids).of_record(tp, offset, pending is not None, waiting, exists)
    letter_topic = readings.letter_topic(reading, explained)
    return pages.record(reading, tp, offset, explained, actions, _addresses(), letter_topic)


@app.get("/pipelines/{name}/turns/{epoch}/{n}")
def turn(name: Pipeline, epoch: int, n: int, lane: Lane = LIVE) -> str:
    """Show the plan and the settlement of one turn."""
    _check_lane(name, lane)
    reading = readings.read_turn(name, lane, epoch, n)
    if reading is None:
        raise HTTPException(404)
    return pages.turn(reading, _addresses())


@app.get("/pipelines/{name}/run")
def run(reading: Reading, run_id: Annotated[str, Query(max_length=1000)]) -> str:
    """Show the turns that a run has settled."""
    return pages.run(reading, run_id, readings.turns_of_run(reading, run_id), _addresses())


@app.get("/dags/{dag_id}")
def of_dag(dag_id: str, dag_ids: DagIds) -> str:
    """Show the pipeline of a DAG, in the tab of Airflow's page of the DAG."""
    return pipeline(_of_dag(dag_id, dag_ids), dag_ids)


@app.get("/dags/{dag_id}/runs/{run_id}")
def of_dag_run(dag_id: str, run_id: str, dag_ids: DagIds) -> str:
    """Show the turns of a DAG run, in the tab of Airflow's page of the run."""
    return run(_of_dag(dag_id, dag_ids), run_id)


def _of_dag(dag_id: str, dag_ids: set[str]) -> LaneReading:
    name = pipeline_of_dag(dag_id)
    if dag_id not in dag_ids or name is None:
        raise HTTPException(404)
    return _reading(_readable_pipeline(name, dag_ids))
