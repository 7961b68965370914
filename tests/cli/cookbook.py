"""The questions of docs/cookbook.md, and the answers to them on the lane of `tests.audit.story`."""

import re
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

PAGE = (Path(__file__).parents[2] / "docs" / "cookbook.md").read_text()
QUESTIONS = re.split(r"^## (\d+)\. ", PAGE, flags=re.MULTILINE)
BLOCK = re.compile(r"^```([a-z -]+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> dict[int, str]:
    """Returns the block of this kind of each question that has one, by the question's number."""
    return {
        int(QUESTIONS[index]): text
        for index in range(1, len(QUESTIONS), 2)
        for found, text in BLOCK.findall(QUESTIONS[index + 1])
        if found == kind
    }


ANSWERS: dict[int, Any] = {
    1: [(0, 1, 1, "failed", None), (0, 2, 2, "failed", None), (0, 2, 0, "dead", "HTTPError")],
    2: [(date(2026, 3, 1), "HTTPError", 1)],
    3: [(1, "acked", 13), (1, "pending", 1), (2, "dead", 1)],
    4: [("run-3", 0, 600.0, 0.0), ("run-2", 7, 600.0, 0.012), ("run-1", 9, 600.0, 0.015)],
    5: [],
    6: [(0, 0, 90), (0, 1, 85), (0, 2, 85)],
    7: [],
    8: [("orders", 0, "retry", "HTTPError", 1, 1)],
    9: [("expired", "orders", 0, 20, 24, 2)],
    10: [],
    11: [("orders", 0, 10, 30, 18, 1, 1, 0)],
    12: [(0, 3, "ada", "", "")],
}
"""The rows of each answer, as `plain` leaves them."""
TIMES = ("handled_at", "settled_at", "next_due")


def plain(names: list[str], rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Returns the rows without times and messages, with decimals as numbers."""
    kept = [
        n
        for n, name in enumerate(names)
        if name not in (*TIMES, "error_message") and not (rows and isinstance(rows[0][n], datetime))
    ]
    return [tuple(int(row[n]) if isinstance(row[n], Decimal) else row[n] for n in kept) for row in rows]
