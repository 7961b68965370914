"""The settled turns of a lane, newest first: runs and the acts of operators."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ackline.audit.sql import sql_result
from ackline.turns import TurnKind

_COUNTS = ("acked", "failed", "skipped", "dropped", "dead", "expired", "compacted", "lost")
_NO_ACTS = (TurnKind.RUN, TurnKind.GENESIS, TurnKind.VOID)


@dataclass(frozen=True, slots=True)
class SettledTurn:
    """One settled turn. `start` is None for a first genesis, which has no plan; `duration` is in seconds."""

    lane: str
    epoch: int
    turn: int
    kind: str
    run_id: str
    actor: str
    reason: str
    start: datetime | None
    end: datetime
    duration: float | None
    partitions: int
    records: int
    outcomes: dict[str, int]
    """How many offsets have each outcome, without zeros."""


def settled_turns(
    root: str, pipeline: str, lane: str | None = None, limit: int | None = None, acts_only: bool = False
) -> list[SettledTurn]:
    """Returns the newest settled turns of a pipeline, newest first; `acts_only` leaves out runs and partitions that
    join. A turn that `ackline void` has closed is an act: of the kind `void`, or `run` if it is recorded as lost.

    Raises FatalError if the tables can't be read.
    """
    wanted = ["true"]
    if lane is not None:
        wanted.append(f"lane = {_literal(lane)}")
    if acts_only:
        wanted.append(f"(by_operator OR kind NOT IN ({', '.join(map(_literal, _NO_ACTS))}))")
    query = f'SELECT * FROM turns WHERE {" AND ".join(wanted)} ORDER BY "end" DESC, lane, epoch DESC, turn DESC'
    with sql_result(root, query if limit is None else f"{query} LIMIT {limit}", [pipeline]) as reader:
        return [_turn(row) for row in _rows(reader)]


def _rows(reader: Any) -> Iterator[dict[str, Any]]:
    for batch in reader:
        yield from batch.to_pylist()


def _turn(row: dict[str, Any]) -> SettledTurn:
    names = ("lane", "epoch", "turn", "kind", "run_id", "actor", "reason", "start", "end", "duration", "partitions",
             "records")  # fmt: skip
    return SettledTurn(**{name: row[name] for name in names}, outcomes={n: row[n] for n in _COUNTS if row[n]})


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
