"""Reads what the page shows from the tables alone. It needs no broker and loads no handler."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ackline.airflow.audit_connection import use_audit_connection
from ackline.audit.queries import AuditFilter, audit_rows
from ackline.audit.store import LedgerStore
from ackline.paths import audit_root
from ackline.turns import LIVE, Settlement

MOST_ROWS = 200
LAST_TURNS = 10


@dataclass(frozen=True, slots=True)
class Lane:
    """The live lane of a pipeline, with its newest settlement; None if it has not run."""

    name: str
    newest: Settlement | None


@dataclass(frozen=True, slots=True)
class Turn:
    """One settled turn, with its offsets by outcome over all partitions."""

    n: int
    kind: str
    run_id: str
    settled_at: datetime
    outcomes: Counter[str]
    reason: str


def lane(name: str) -> Lane:
    """Returns the live lane of a pipeline."""
    return Lane(name, _store(name).newest())


def lanes(names: Iterable[str]) -> list[Lane]:
    """Returns the live lanes of these pipelines, sorted by name."""
    return [lane(name) for name in sorted(names)]


def turns(name: str) -> list[Turn]:
    """Returns the last LAST_TURNS turns of the newest epoch, newest first."""
    store = _store(name)
    newest = store.newest()
    if newest is None:
        return []
    lowest = max(0, newest.turn.n - LAST_TURNS + 1)
    return [to_turn(store.settlement(newest.turn._replace(n=n))) for n in range(newest.turn.n, lowest - 1, -1)]


def audit(name: str, criteria: AuditFilter) -> list[dict[str, Any]]:
    """Returns effective rows of the audit table, but none without an offset: they may be millions."""
    if criteria.offsets is None:
        return []
    use_audit_connection()
    return list(audit_rows(audit_root(), name, criteria))


def _store(name: str) -> LedgerStore:
    use_audit_connection()
    return LedgerStore(audit_root(), name, LIVE)


def to_turn(settlement: Settlement) -> Turn:
    """Returns what the page shows of a settlement."""
    outcomes: Counter[str] = Counter()
    for settled in settlement.partitions.values():
        outcomes.update(settled.counts)
    turn, kind = settlement.turn, settlement.kind.value
    return Turn(turn.n, kind, settlement.run_id, settlement.settled_at, outcomes, settlement.reason)
