"""The page as Airflow mounts it.

Every process of Airflow loads the plugins, so this module imports the page only at its first request.
"""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]


async def page(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """Serve one request, as an ASGI application."""
    from ackline.ui.app import app

    await app(scope, receive, send)
