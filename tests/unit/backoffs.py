"""Retry policies for the tests."""

import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

answers: dict[str, Callable[[datetime], Any]] = {
    "nothing of the sort": lambda _: "tomorrow",
    "a delay": lambda _: timedelta(seconds=5),
    "a number": lambda tp: tp.timestamp(),
    "a naive time": lambda tp: tp.replace(tzinfo=None),
    "an exit": lambda _: sys.exit(0),
    "an error": lambda _: 1 / 0,
    "out of time": lambda tp: datetime.max.replace(tzinfo=tp.tzinfo) + timedelta(1),
}
answer = "an error"
"""What `Odd` answers; a test changes it as a user would mend the code."""
asked: list[tuple[int, datetime, str | None, str]] = []


class Patient:
    """Two attempts, an hour apart; what timed out gets a third. Written by somebody far from UTC."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        asked.append((attempts, handled_at, error_class, seed))
        return None if attempts > 1 + (error_class == "TimeoutError") else handled_at.astimezone() + timedelta(hours=1)


class Hasty:
    """At once, a minute before it failed even."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        return handled_at - timedelta(minutes=1)


class Odd:
    """Answers what it should not."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> Any:
        return answers[answer](handled_at) if answer in answers else None


class WithoutMethod:
    pass


class NotCallable:
    next_attempt = 5


class OfTwo:
    def next_attempt(self, attempts: int, handled_at: datetime) -> datetime:
        return handled_at


class Deferred:
    async def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime:
        return handled_at


class WithArguments:
    def __init__(self, delay: int) -> None:
        self.delay = delay


class Leaves:
    def __init__(self) -> None:
        sys.exit(0)
