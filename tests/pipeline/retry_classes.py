"""Retry classes for the tests: right ones, and ones that are wrong in each way that a user's class may be."""

import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

invalid: dict[str, Callable[[datetime], Any]] = {
    "a text": lambda _: "tomorrow",
    "a delay": lambda _: timedelta(seconds=5),
    "a number": lambda handled_at: handled_at.timestamp(),
    "a naive time": lambda handled_at: handled_at.replace(tzinfo=None),
    "an exit": lambda _: sys.exit(0),
    "an error": lambda _: 1 / 0,
    "an overflow": lambda handled_at: datetime.max.replace(tzinfo=handled_at.tzinfo) + timedelta(1),
}
answer = "an error"
"""The answer of `Odd`: a key of `invalid`, or anything else for None. A test changes it as a user corrects the code."""
calls: list[tuple[int, datetime, str | None, str]] = []
"""The arguments of each call of `Patient`."""


class Patient:
    """Two attempts, an hour apart; a third after a TimeoutError. Its times are in the zone of the machine."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        calls.append((attempts, handled_at, error_class, seed))
        return None if attempts > 1 + (error_class == "TimeoutError") else handled_at.astimezone() + timedelta(hours=1)


class Hasty:
    """Retries without end; each is due a minute before its attempt failed."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime | None:
        return handled_at - timedelta(minutes=1)


class Odd:
    """Gives the invalid answer that the test has chosen."""

    def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> Any:
        return invalid[answer](handled_at) if answer in invalid else None


class WithoutMethod:
    pass


class NotCallable:
    next_attempt = 5


class OfTwoArguments:
    def next_attempt(self, attempts: int, handled_at: datetime) -> datetime:
        return handled_at


class Asynchronous:
    async def next_attempt(self, attempts: int, handled_at: datetime, error_class: str | None, seed: str) -> datetime:
        return handled_at


class MadeWithArguments:
    def __init__(self, delay: int) -> None:
        self.delay = delay


class Exits:
    def __init__(self) -> None:
        sys.exit(0)
