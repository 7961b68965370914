"""Which turns of a lane are effective: a row counts once a settlement names its turn, unless that settlement is void.

The rule stands here for all that reads the tables as Arrow, in `views.sql` for SQL, and on purpose once more in
`ackline.verify`. Settlements are stored in the order of their turns. So the effective turns of an epoch are all up to
its last settlement, without the void ones; few turns are void, and statistics rule out the files of all others.
"""

from collections.abc import Set
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

from ackline.ledger.turns import TurnKind
from ackline.tables.layout import LaneTables
from ackline.tables.reads import Where
from ackline.tables.schemas import TIME
from ackline.tables.table import AuditTable

_TURNS_AN_EPOCH = 1 << 40


class EffectiveTurns:
    """The effective turns of one lane, looked up once an epoch; with `settled_by`, those that were settled at that time
    or before. Each method raises FatalError if the settlements can't be read."""

    def __init__(self, tables: LaneTables, settled_by: datetime | None = None) -> None:
        self._tables = tables
        self._settled_by = settled_by
        self._epochs: dict[int, tuple[int, Set[int]]] = {}

    def has(self, epoch: int, turn: int) -> bool:
        """Returns whether a turn is effective."""
        if epoch not in self._epochs:
            # The last settlement first: a turn that becomes void between the two reads is above it.
            last = self._tables.last_settled(epoch)
            self._epochs[epoch] = (-1, set()) if last is None else (last, self._left_out(epoch))
        last, left_out = self._epochs[epoch]
        return turn <= last and turn not in left_out

    def mask(self, rows: pa.Table) -> pa.ChunkedArray:
        """Returns for each row of a table whether its turn is effective. The rows have the columns epoch and turn."""
        turns = rows.group_by(["epoch", "turn"]).aggregate([]).to_pylist()
        keys = [row["epoch"] * _TURNS_AN_EPOCH + row["turn"] for row in turns if self.has(row["epoch"], row["turn"])]
        turn_keys = pc.add(pc.multiply(rows["epoch"].cast(pa.int64()), _TURNS_AN_EPOCH), rows["turn"])
        return pc.is_in(turn_keys, pa.array(keys, pa.int64()))

    def _left_out(self, epoch: int) -> Set[int]:
        """Returns the turns of an epoch that are void, or were settled too late."""
        if self._settled_by is None:
            return {turn for _, turn in void_turns(self._tables.folder, epoch)}
        rows = self._tables.settlements.read({"epoch": epoch}, ["turn", "kind", "settled_at"])
        late = pc.greater(rows["settled_at"], pa.scalar(self._settled_by, TIME))
        left_out = rows.filter(pc.or_(pc.equal(rows["kind"], TurnKind.VOID.value), late))
        return set(left_out["turn"].unique().to_pylist())


def void_turns(folder: str, epoch: int | None = None) -> set[tuple[int, int]]:
    """Returns epoch and number of each void turn of a lane, whose tables are in `folder`; those of one epoch if it is
    given. One read, however many turns there are. Raises FatalError if the table can't be read."""
    where: Where = {"kind": TurnKind.VOID.value, **({} if epoch is None else {"epoch": epoch})}
    rows = AuditTable(folder, "settlements").read(where, ["epoch", "turn"])
    return set(zip(rows["epoch"].to_pylist(), rows["turn"].to_pylist(), strict=True))
