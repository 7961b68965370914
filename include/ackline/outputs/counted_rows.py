"""Whether the tables hold the rows that settlements count, for `ackline doctor`.

The transaction ids prove that a turn is stored and published. A user's RESTORE of a table keeps the ids and takes the
rows, and two tools that rewrite the same files double them. Only a count shows that, so the newest turns are counted.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ackline.delta.reads import dataset_of
from ackline.delta.table import FencedTable
from ackline.ledger.published import OutputsOfTurn
from ackline.ledger.turns import TurnId, TurnKind
from ackline.outputs.output_table import table_of
from ackline.pipeline.pipeline import TurnSettings
from ackline.scrub import scrub_address
from ackline.stored import decode_or_none
from ackline.tables.store import LedgerStore

MOST_TURNS, MOST_ROWS = 100, 1_000_000
"""How many turns of the newest epoch are counted, and of how many offsets together; the newest one always."""
_NAMED = 5


def differing_rows(store: LedgerStore) -> Iterator[str]:
    """Yields for each table of a lane, and for each output table that its user has set back, which of the newest turns
    have other numbers of rows than their settlements count. Raises FatalError or TransientError if a table can't be
    read."""
    newest = store.newest()
    if newest is None or newest.turn.n == 0 or store.settlements.open() is None:
        return
    last, first = newest.turn, max(1, newest.turn.n - MOST_TURNS + 1)
    of_epoch, recent = {"epoch": last.epoch}, (ds.field("turn") >= first) & (ds.field("turn") <= last.n)
    settled = store.settlements.read(of_epoch, ["turn", "kind", "counts", "outputs"], also=recent).to_pylist()
    planned = store.plans.read(of_epoch, ["turn", "topic", "settings"], also=recent).to_pylist()
    planned = [row for row in planned if row["topic"] is not None]  # the others are markers
    for table, rows in ((store.settlements, settled), (store.plans, planned)):
        missing = set(range(first, last.n + 1)) - {row["turn"] for row in rows}
        if missing:
            yield f"{_differs(table, dict.fromkeys(missing, (0, 1)))}. Restore the folder of the table from a backup"
    settled = [row for row in settled if row["kind"] != TurnKind.VOID.value]
    counted = _counted(settled, planned)
    if counted:
        chosen = (ds.field("epoch") == last.epoch) & (ds.field("turn") >= min(counted))
        number = pc.coalesce(ds.field("end_offset") - ds.field("offset"), pc.scalar(pa.scalar(1, pa.int64())))
        if other := _other_numbers(store.outcomes, chosen, "", number, counted):
            yield (
                f"{_differs(store.outcomes, other)}. No step needs these rows any more, but `ackline sql`, `explain` "
                f"and `dead` show what is there. Restore the version before that, or the table's folder from a backup"
            )
    yield from _of_outputs(store, last, {row["turn"]: row["outputs"] for row in settled if row["outputs"]})


def _counted(settled: list[dict[str, Any]], planned: list[dict[str, Any]]) -> dict[int, int]:
    """Returns how many offsets have a row of `outcomes`, for each turn that keeps these rows."""
    settings = {row["turn"]: row["settings"] for row in planned if row["settings"]}
    offsets = Counter[int]()
    for row in settled:
        offsets[row["turn"]] += sum(dict(row["counts"] or ()).values())
    counted, total = dict[int, int](), 0
    for n, number in sorted(offsets.items(), reverse=True):
        total += number
        if counted and total > MOST_ROWS:
            break
        stored = decode_or_none(settings.get(n), dict[str, Any])
        if stored is not None and TurnSettings(stored).keeps_outcome_rows:
            counted[n] = number
    return counted


def _of_outputs(store: LedgerStore, last: TurnId, outputs: Mapping[int, str]) -> Iterator[str]:
    """Yields what the output tables lack. A user may delete rows, so only a table that has been set back is counted."""
    turns = {n: OutputsOfTurn.decode(text).tables for n, text in outputs.items()}
    for place in sorted({place for tables in turns.values() for place in tables}):
        table = table_of(store, place)
        if not table.was_set_back(MOST_TURNS):
            continue
        given_up = [n for n in turns if place in store.given_up(last._replace(n=n))]
        published = {
            n: tables[place].rows
            for n, tables in turns.items()
            if place in tables and tables[place].files is not None and n > max(given_up, default=0)
        }
        if not store.is_published(last):
            published.pop(last.n, None)
        chosen = (ds.field("_lane") == last.lane) & (ds.field("_epoch") == last.epoch)
        if published and (other := _other_numbers(table, chosen, "_", pc.scalar(pa.scalar(1, pa.int64())), published)):
            yield (
                f"{_differs(table, other)}. Its user has set it back (RESTORE); a backfill of their records publishes "
                f"them again"
            )


def _other_numbers(
    table: FencedTable, chosen: ds.Expression, prefix: str, number: pc.Expression, counted: Mapping[int, int]
) -> dict[int, tuple[int, int]]:
    """Returns for each turn whose number of rows is not the one that is counted, both. One batch is in memory."""
    version, turn, held = table.open(), f"{prefix}turn", Counter[int]()
    with table.errors():
        if version is not None:
            dataset = dataset_of(table, version, (f"{prefix}epoch", turn))
            wanted = chosen & (ds.field(turn) >= min(counted))
            columns = {"turn": ds.field(turn), "number": number}
            for batch in dataset.to_batches(columns=columns, filter=wanted, batch_readahead=1, fragment_readahead=1):
                for row in pa.table(batch).group_by("turn").aggregate([("number", "sum")]).to_pylist():
                    held[row["turn"]] += row["number_sum"]
    return {n: (held[n], expected) for n, expected in sorted(counted.items()) if held[n] != expected}


def _differs(table: FencedTable, turns: Mapping[int, tuple[int, int]]) -> str:
    listed = [f"turn {n} has {held} of {number}" for n, (held, number) in sorted(turns.items())]
    more = f" and {len(listed) - _NAMED} more turns" if len(listed) > _NAMED else ""
    where = f"the table {table.name} at {scrub_address(table.uri)}"
    return f"{where} has other rows than were settled: {', '.join(listed[:_NAMED])}{more}"
