"""What the tables of a lane hold for the page. A process keeps it, and reads of a lane what was committed since.

Each open page asks for every pipeline four times a minute. A lane without a new commit costs the status of its logs;
one with a new turn costs that turn. Settled turns never change, so what is kept can only be too old, not wrong.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Lock

from ackline.audit.history import TurnTotals, dead_since, log_starts_at, recent_turns, totals_of
from ackline.errors import LedgerError
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan, Settlement, TurnId
from ackline.tables.store import LedgerStore, LogEntries, LogStamps
from ackline.ui.partition import PartitionReading

DEAD_WITHIN = timedelta(days=1)
"""The list of all pipelines counts the records that died within this time."""
MOST_LANES = 256
"""How many lanes a process keeps."""
MOST_NEW_TURNS = 4
"""Up to so many new turns are read one by one. After more of them the lane is read as a whole."""


@dataclass(frozen=True, slots=True)
class StoredLane:
    """What the tables of a lane hold. It changes with a commit alone."""

    newest: Settlement
    plan: Plan | None
    turns: Sequence[TurnTotals]
    partitions: Sequence[PartitionReading]
    """As of the time when they were read, by a lane that commits nothing."""
    ledger: str
    deaths: Sequence[tuple[datetime, int]]
    """When records died within DEAD_WITHIN before they were read, and how many: a pair a turn."""
    paced: tuple[TurnTotals, Mapping[TopicPartition, int]] | None
    """The turn since which the pace of retention is computed, with its log starts; None before a first measure."""

    def dead_since(self, since: datetime) -> int:
        """Returns how many records died since a time, which is at most DEAD_WITHIN ago."""
        return sum(number for at, number in self.deaths if at >= since)


class _Kept:
    """What a process keeps of a lane, for one request at a time."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.store: LedgerStore | None = None
        self.stamps: LogStamps = ()
        self.entries: LogEntries = frozenset()
        """The newest entry of each log before it was read."""
        self.stored: StoredLane | None = None

    def before(self, store: LedgerStore, stamps: LogStamps) -> StoredLane | None:
        """Returns what was read before; None if it was read from other logs, or not at all."""
        precedes = all(old.precedes(new) for old, new in zip(self.stamps, stamps, strict=False))
        return self.stored if precedes and store.has_entries(self.entries) else None


_kept: OrderedDict[tuple[str, str, str, int], _Kept] = OrderedDict()


def stored_lane(store: LedgerStore, turns: int) -> StoredLane | None:
    """Returns what the tables of a lane hold, with its newest `turns` turns; None if the lane has not run. Raises
    FatalError if the tables can't be read."""
    kept = _kept.setdefault((store.root, store.pipeline, store.lane, turns), _Kept())
    while len(_kept) > MOST_LANES:
        _kept.popitem(last=False)
    with kept.lock:
        stamps = store.stamps_of_logs()
        if kept.stored is None or kept.stamps != stamps:
            before = kept.before(store, stamps)
            entries = store.newest_entries()
            # A handle that has read a lane as a whole is large, and one of an object store keeps an old login.
            if before is None or "://" in store.root:
                kept.store = None
            elif kept.store is None:
                kept.store = store
            reader = kept.store or store
            newest = reader.newest()
            kept.stored = None if newest is None else _read(reader, newest, turns, before)
            kept.stamps, kept.entries = stamps, entries
        return kept.stored


def _read(store: LedgerStore, newest: Settlement, turns: int, before: StoredLane | None) -> StoredLane:
    since, paced = datetime.now(UTC) - DEAD_WITHIN, None
    added = None if before is None else _turns_since(store, before, newest)
    if before is None or added is None:
        totals = recent_turns(store, newest.turn, len(newest.partitions), turns)
        deaths = dead_since(store, since)
    else:
        totals, paced = [*before.turns, *added][-turns:], before.paced
        died = [(turn.settled_at, turn.outcomes.get(Outcome.DEAD.value, 0)) for turn in added]
        deaths = [(at, number) for at, number in (*before.deaths, *died) if number and at >= since]
    measured = [turn for turn in totals if turn.metrics]  # a genesis has none
    if measured and (paced is None or paced[0].turn.n < newest.turn.n - 2 * turns):
        paced = (measured[0], log_starts_at(store, measured[0].turn))
    if before is not None and added == []:
        reasons: Mapping[TopicPartition, str | None] = {part.tp: part.why for part in before.partitions}
    else:
        reasons = _reasons(store, newest)
    plan = store.open_plan(newest)
    found = plan.partitions if plan is not None else {}
    elapsed = newest.settled_at - paced[0].settled_at if paced else timedelta()
    partitions = [
        PartitionReading(
            tp, settled, reasons.get(tp), paced[1].get(tp) if paced else None, elapsed, max(0, len(measured) - 1),
            newest.settled_at, newest.settled_at, None,
            seen.offset if tp in found and (seen := found[tp].committed) is not None else None,
        )
        for tp, settled in sorted(newest.partitions.items())
    ]  # fmt: skip
    return StoredLane(newest, plan, totals, partitions, store.ledger_id(), deaths, paced)


def _turns_since(store: LedgerStore, before: StoredLane, newest: Settlement) -> list[TurnTotals] | None:
    """Returns the turns after those that were read before, oldest first; None if the lane has to be read as a whole:
    it has another epoch, or too many new turns."""
    known, turn = before.newest.turn, newest.turn
    if known.epoch != turn.epoch or not 0 <= turn.n - known.n <= MOST_NEW_TURNS:
        return None
    between = [store.settlement(turn._replace(n=n)) for n in range(known.n + 1, turn.n)]
    return [totals_of(settlement) for settlement in (*between, *([newest] if turn.n > known.n else []))]


def _reasons(store: LedgerStore, newest: Settlement) -> Mapping[TopicPartition, str]:
    """Returns why the newest turn read nothing of a partition, of those that it did not read."""
    return {} if all(part.counts for part in newest.partitions.values()) else store.reasons(newest.turn)


def any_plan(store: LedgerStore, turn: TurnId) -> Plan | None:
    """Returns the plan of a turn; None if it is not stored."""
    try:
        return store.plan(turn)
    except LedgerError:
        return None
