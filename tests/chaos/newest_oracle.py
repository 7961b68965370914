"""The oracle of tables with `rows: newest`: what a reader must find in each version, and what may stop a lane.

It holds attempts by numbers of their own, and reads no mark, bound, transaction id or anchor of a table to find which
rows an entry replaces.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import partition_key
from ackline.ledger.turns import TurnId
from ackline.outputs import expected
from tests.chaos.account import Violation
from tests.chaos.newest_ledger import TABLES, TOPIC, Ledger, Record, Settled, Try
from tests.chaos.newest_table import MemoryTable


class Held(NamedTuple):
    """A row that a reader must find. `anchors` has each attempt with its outcome when the row was published."""

    turn: TurnId
    ledger: str
    anchors: tuple[tuple[Try, Outcome], ...]


class Truth(NamedTuple):
    """What the oracle keeps beside a version: its rows by value, the transaction ids of the lanes that have published,
    and by partition an offset that no row has reached."""

    rows: Mapping[int, Held] = {}
    publishers: frozenset[str] = frozenset()
    ends: Mapping[int, int] = {}


class NewestOracle:
    """Judges a world. `lost` are the outcomes of ledgers that another one has followed; `settled` has each turn by the
    transaction id and number under which it is published."""

    tables: Mapping[str, MemoryTable]
    lanes: dict[str, Ledger]
    settled: dict[tuple[str, int], tuple[Settled, Ledger]]
    lost: dict[int, Outcome]
    drawn: Counter[str]

    def check_expected(self, ledger: Ledger, records: Sequence[Record]) -> None:
        """Raises what stops a lane before it reads records, if a table or its ledger is an older copy; Violation if it
        stops without need, or goes on. A table that holds nothing of the lane was made anew, and stops nothing."""
        for place in TABLES if records else ():
            error = expected.unexpected(ledger, ledger.turn, place, ledger.expected)  # type: ignore[arg-type]
            held, known = self.tables[place].newest.transactions.get(ledger.application), ledger.known.get(place)
            if held is not None and known is not None and (held in known) == (error is not None):
                raise Violation(f"{ledger.turn}: {place} holds {held}, and {known} are no older copy: {error}")
            if error is not None:
                raise error

    def replaced(self, turn: TurnId, place: str, handled: Mapping[Record, int]) -> set[int]:
        """Returns the rows that a turn replaces. Raises Violation if it handles a part of the records of a row."""
        gone = set[int]()
        for value, row in self.tables[place].newest.truth.rows.items():
            # A row is also of an attempt that was in flight when it was published, if that was acked since.
            owner = self.lanes.get(row.turn.lane)
            since = {**self.lost, **(owner.ended if owner is not None else {})}
            acked = {of.record: of.number for of, was in row.anchors
                     if (since.get(of.number, was) if was is Outcome.IN_FLIGHT else was) is Outcome.ACKED}  # fmt: skip
            again = {record for record, number in acked.items() if handled.get(record, number) != number}
            if again and again != acked.keys():
                raise Violation(f"{turn} handles {sorted(again)} of the records {sorted(acked)} of row {value}")
            gone |= {value} if again else set()
        return gone

    def may_stop(self, ledger: Ledger, turn: TurnId, place: str, handled: Mapping[Record, int]) -> bool:
        """Returns whether a turn handles a part of the records of a row. Those of other lanes, epochs and ledgers that
        were in flight may be among them."""
        truth = self.tables[place].newest.truth
        other_ledger = any(id_.split("/")[3] == turn.lane for id_ in truth.publishers - {ledger.application})
        for row in truth.rows.values():
            own = not other_ledger and (row.turn.lane, row.turn.epoch) == (turn.lane, turn.epoch)
            origins = {of.record for of, was in row.anchors
                       if was is Outcome.ACKED or (was is Outcome.IN_FLIGHT and not own)}  # fmt: skip
            if origins & handled.keys() not in (set(), origins):
                return True
        return False

    def entered(self, table: MemoryTable, application: str, number: int) -> Truth:
        """Returns what a reader must find after an entry."""
        (done, ledger), truth = self.settled[application, number], table.newest.truth
        gone = self.replaced(done.turn, table.uri, done.handled)
        self.drawn["entries"] += 1
        self.drawn["entries that replace rows"] += bool(gone)
        rows, ends = {value: row for value, row in truth.rows.items() if value not in gone}, dict(truth.ends)
        for row in (row for row in done.rows if row.table == table.uri):
            anchors = tuple((of, ledger.ended[of.number]) for of in row.tries)
            rows[row.value] = Held(done.turn, ledger.id, anchors)
            for p, o in (of.record for of in row.tries):
                ends[p] = max(ends.get(p, 0), o + 1)
        return Truth(rows, truth.publishers | {application}, ends)

    def forward(
        self, turn: TurnId, lowest: Mapping[str, int], place: str, act: Callable[..., Any], *args: Any, of: Ledger
    ) -> Any:
        """Calls what looks at a table. Raises Violation if a lane that only goes forward looks at a file."""
        table = self.tables[place]
        version, looks, truth = table.newest, table.looks, table.newest.truth
        alone = turn.epoch == 0 and truth.publishers <= {of.application}
        above = all(lowest.get(partition_key(TOPIC, p), end) >= end for p, end in truth.ends.items())
        result = act(*args)
        if (alone or above) and table.looks > looks and version is table.newest:
            raise Violation(f"{turn} goes forward, and looks at the files of {place}")
        return result

    def check(self) -> None:
        """Raises Violation unless a reader of each table finds the rows of the newest handlings, each once."""
        for table in self.tables.values():
            if table.newest.values != sorted(table.newest.truth.rows):
                raise Violation(f"{table.uri} holds {table.newest.values}, not {sorted(table.newest.truth.rows)}")
