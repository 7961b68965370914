"""The routes of the audit page.

Airflow serves a plugin's application without authentication. So each route here requires a login, and the right to read
the pipeline's DAG. All routes are GET: a request that changes something would need protection against forged ones.
"""

from collections.abc import Awaitable, Callable
from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_view
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse

from ackline.airflow.links import DAG_PREFIX
from ackline.audit.queries import AuditFilter
from ackline.errors import AcklineError
from ackline.offsets import OffsetRange
from ackline.ui import lanes, pages

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
    "frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
}

# FastAPI's own pages of documentation are off: nothing would authenticate them.
app = FastAPI(
    title="Ackline",
    docs_url=None,
    redoc_url=None,
    openapi_url=None,
    default_response_class=HTMLResponse,
    dependencies=[Depends(requires_access_view(AccessView.WEBSITE))],
)


@app.middleware("http")
async def _with_headers(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers.update(HEADERS)
    return response


@app.exception_handler(AcklineError)
async def _error_page(request: Request, error: AcklineError) -> HTMLResponse:
    return HTMLResponse(pages.problem(str(error)), status_code=500)


def _readable_pipelines(user: GetUserDep) -> set[str]:
    """Returns the pipelines whose DAG the user may read."""
    dags = get_auth_manager().get_authorized_dag_ids(user=user, method="GET")
    return {dag.removeprefix(DAG_PREFIX) for dag in dags if dag.startswith(DAG_PREFIX)}


Readable = Annotated[set[str], Depends(_readable_pipelines)]


@app.get("/")
def index(readable: Readable) -> str:
    """Show every pipeline that the user may read."""
    return pages.index(lanes.lanes(readable))


@app.get("/pipelines/{name}")
def pipeline(
    name: str,
    readable: Readable,
    topic: Annotated[str | None, Query(max_length=249)] = None,
    partition: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
    offset: Annotated[int | None, Query(ge=0, lt=2**62)] = None,
) -> str:
    """Show one pipeline: its partitions, its last turns, and the outcomes of one offset."""
    if name not in readable:
        raise HTTPException(404, "no such pipeline, or you may not read its DAG")
    offsets = None if offset is None else OffsetRange(offset, offset + 1)
    criteria = AuditFilter(topic=topic or None, partition=partition, offsets=offsets, limit=lanes.MOST_ROWS)
    return pages.pipeline(lanes.lane(name), lanes.turns(name), criteria, lanes.audit(name, criteria))
