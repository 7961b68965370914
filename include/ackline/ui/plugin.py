"""The plugin of Airflow: the page below /ackline, its menu entry, its tabs on DAGs and runs, and its link on each task.

The package registers it by an entry point, so an Airflow that has the package installed has the page. Every process of
Airflow loads its plugins: what the page itself needs is imported by the first request, in a process that serves.
"""

import asyncio
import importlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from ackline.airflow.dags import PAGE, AuditLink, external_views

Message = MutableMapping[str, Any]


async def page(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Serve one request, as an ASGI application."""
    # In a thread: the first import takes a second, and the server answers other requests meanwhile.
    served = await asyncio.to_thread(importlib.import_module, "ackline.ui.app")
    await served.app(scope, receive, send)


class AcklinePlugin(AirflowPlugin):
    """Registers the page, its views and its links. Airflow reads these attributes."""

    name = "ackline"
    fastapi_apps = [{"app": page, "url_prefix": PAGE, "name": "Ackline"}]  # noqa: RUF012
    external_views = external_views()
    operator_extra_links = [AuditLink()]  # noqa: RUF012
