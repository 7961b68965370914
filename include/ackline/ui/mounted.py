"""The page as Airflow mounts it. Plugins are loaded by every process of Airflow, so the page itself is imported when it
is first asked for."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

Message = MutableMapping[str, Any]


async def page(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """An ASGI application."""
    from ackline.ui.app import app

    await app(scope, receive, send)
