"""What a turn has for output tables, as manifests and settlements hold it, and which turns a table may hold. Pure.

Rows for a table are staged first, because only those of acked records are published. The manifest of one execution of a
turn names the staged files; only the execution that outcomes n name is published. `OutputsOfTurn` is what settlement n
says that the turn publishes.

A turn is published in a table by one commit. It carries the transaction id of ledger, pipeline and lane, with a number
that names the turn (`ledger.turns.number_of`). So a table takes a turn once. `OutputsOfTurn.expected` has the numbers
that each table may hold as its newest one: if it holds another one, the table or the ledger was set back to an older
copy.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ackline.errors import ConfigError
from ackline.ledger.turns import TurnId, turn_in
from ackline.scrub import scrub_address
from ackline.stored import DamagedError, decode, encode


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A file of staged rows. `size` is in bytes.

    `path` is relative to the turn's staging folder in a manifest, and to the staging root in `OutputsOfTurn`.
    """

    output: int
    path: str
    size: int
    rows: int


@dataclass(frozen=True, slots=True)
class StagedTable:
    """The staged rows of one output table."""

    table: str
    columns: Mapping[str, str]
    partition_by: Sequence[str]
    files: Sequence[StagedFile]


@dataclass(frozen=True, slots=True)
class FinalFile:
    """A finished data file of an output table, with what the table's log has to say of it.

    `path` is relative to the table, `size` in bytes, `modification_time` in milliseconds since 1970, `partition` the
    values of the partition columns as the log writes them, `stats` Delta's JSON.
    """

    path: str
    size: int
    modification_time: int
    partition: Mapping[str, str | None]
    stats: str


@dataclass(frozen=True, slots=True)
class TableOfTurn:
    """What a turn publishes in one output table.

    `files` are the files with the rows. None if settle could not write them, of a turn that can't be voided any more:
    publishing writes them then, and `rows` is how many rows it has at most. `columns` are the emitted columns of the
    table when the files were written.
    """

    rows: int
    files: Sequence[FinalFile] | None
    columns: Mapping[str, str] = field(default_factory=dict)
    ends: Mapping[str, int] = field(default_factory=dict)
    """The offset after the last one that a row names, by topic-partition as `partition_key` writes it."""
    several: bool = False
    """Whether a row is anchored to several records."""
    lowest: Mapping[str, int] | None = None
    """The lowest offset that the turn may have settled, by topic-partition. The turn replaces older rows of the records
    that it acked or whose handler skipped them. None: the table keeps all rows."""


Numbers = Mapping[str, Sequence[int]]
"""The numbers that an output table may hold as its newest one, rising, by transaction id. A lane has one id, and a new
one once its ledger is adopted; the numbers of an earlier id are those from before that, and none once the lane has
published under the new id."""


@dataclass(frozen=True, slots=True)
class OutputsOfTurn:
    """What a turn has to publish, as settlement n holds it.

    Each table is known by its place: its name, or its URI, always the same one whatever pipeline files call it.
    """

    expected: Mapping[str, Numbers]
    """By table, what it may hold from the settlement on: the last turn that is published there, later turns that an
    operator gave up and that another process may have published all the same, and this turn."""
    number: int = 0
    """Names the turn and what exactly it publishes."""
    execution: int | None = None
    """The execution that outcomes n name; None if the turn has staged no rows itself."""
    tables: Mapping[str, TableOfTurn] = field(default_factory=dict)
    kept: Sequence[StagedTable] = ()
    """Files of rows that wait after the turn: none of their records is acked, and one is in flight."""
    released: Sequence[StagedTable] = ()
    """Files of rows that waited before the turn and are not in `kept`. The turn publishes the rows whose records it has
    acked; then Ackline removes these files."""

    def encode(self) -> str:
        """Returns the text that settlement n holds; empty if there is nothing to hold."""
        content = (self.expected, self.tables, self.kept, self.released)
        return "" if self.execution is None and not any(content) else encode(self)

    @classmethod
    def decode(cls, text: str) -> "OutputsOfTurn":
        """Returns what is in `text`, which `encode` has made. Raises ConfigError for that of an earlier version."""
        try:
            return decode(text, cls) if text else cls({})
        except DamagedError as error:
            raise ConfigError(
                f"the settlements below ACKLINE_AUDIT hold outputs as an earlier version of Ackline has stored them, "
                f"and this version does not publish them ({error}). Point ACKLINE_AUDIT at an empty folder, and take "
                f"the group over with `ackline adopt-ledger`",
                key="ACKLINE_AUDIT",
            ) from None

    def application(self, table: str) -> str:
        """Returns the transaction id under which the turn is published in a table of `tables`."""
        return next(id_ for id_, numbers in self.expected[table].items() if self.number in numbers)

    def expected_before(self, table: str) -> dict[str, list[int]]:
        """Returns what a table may hold that lacks the turn."""
        numbers = self.expected.get(table, {})
        return {id_: [number for number in of_id if number != self.number] for id_, of_id in numbers.items()}

    def expected_after(self, given_up: Collection[str] = ()) -> dict[str, Numbers]:
        """Returns what each table may hold once the turn is published, in all its tables but those `given_up`."""
        after = dict(self.expected)
        for table in self.tables.keys() - set(given_up):
            after[table] = _only(self.expected[table], self.application(table), [self.number])
        return after


def kept_after(text: str) -> Sequence[StagedTable]:
    """Returns the files of rows that wait for records in flight, given the `outputs` of a settlement."""
    return OutputsOfTurn.decode(text).kept


def without_effect(text: str, given_up: Collection[str] = ()) -> str:
    """Returns the `outputs` of the settlement of a void turn, given those of the settlement before it: it publishes
    nothing, and the same rows wait. The tables `given_up` did not get the turn before it."""
    before = OutputsOfTurn.decode(text)
    return OutputsOfTurn(before.expected_after(given_up), kept=before.kept).encode()


def application_of(ledger_id: str, turn: TurnId) -> str:
    """Returns the transaction id of a lane in output tables.

    It begins with the ledger's id: a table outside ACKLINE_AUDIT outlives a ledger, and turn 1 of the next ledger is
    another one.
    """
    return f"ackline/{ledger_id}/{turn.pipeline}/{turn.lane}/output"


ROWS = "ackline/rows"
"""The transaction id of an output table whose rows all have a mark. Its number is 2 once the table has got rows of
several records, and 1 before."""
ROWS_OF_ONE, ROWS_OF_SEVERAL = 1, 2


def partition_key(topic: str, partition: int) -> str:
    """Returns the name of a topic-partition among `TableOfTurn.ends` and the marks of a table."""
    return f"{topic}/{partition}"


def _mark_of(key: str) -> str:
    return f"{ROWS}/{key}"


def marks_with(held: Mapping[str, int], of_turn: TableOfTurn, is_new: bool) -> dict[str, int]:
    """Returns the transaction ids that a table gets with the rows of a turn, beside that of the lane; `held` are those
    that it has, and `is_new` is whether it had no row before. The mark of a topic-partition is an offset that no row
    in the table reaches, whichever lane has published it."""
    raised = {_mark_of(key): end for key, end in of_turn.ends.items() if end > held.get(_mark_of(key), -1)}
    kind = ROWS_OF_SEVERAL if of_turn.several else ROWS_OF_ONE
    # A table that its user has filled, or that an earlier version has published to, has rows without marks, and so it
    # never gets this one.
    return raised | ({ROWS: kind} if is_new or held.get(ROWS, kind) < kind else {})


def has_rows_of_several(held: Mapping[str, int]) -> bool:
    """Returns whether a table with the transaction ids `held` may have rows that are anchored to several records."""
    return held.get(ROWS, ROWS_OF_SEVERAL) == ROWS_OF_SEVERAL


def may_replace(held: Mapping[str, int], application: str, turn: TurnId, lowest: Mapping[str, int]) -> bool:
    """Returns whether a table with the transaction ids `held` may have older rows of records that `turn` settles from
    the offsets `lowest` on.

    It has none that only this lane has filled, in its first epoch: a lane settles a record once in an epoch. Nor has it
    one of which no row reaches these offsets. So a lane that goes forward looks at no file. Of a table without ROWS it
    is not known who has filled it.
    """
    if not lowest or (ROWS in held and turn.epoch == 0 and publishers(held) == {application}):
        return False
    return ROWS not in held or any(offset < held.get(_mark_of(key), -1) for key, offset in lowest.items())


def publishers(held: Mapping[str, int]) -> set[str]:
    """Returns the transaction ids of the lanes that have published to a table with the transaction ids `held`."""
    return {id_ for id_ in held if id_.startswith("ackline/") and id_.endswith("/output")}


def other_pipelines(held: Mapping[str, int], pipeline: str) -> set[str]:
    """Returns the other pipelines that have published to a table with the transaction ids `held`."""
    return {id_.split("/")[2] for id_ in publishers(held)} - {pipeline}


def is_of_one_ledger(held: Mapping[str, int], application: str) -> bool:
    """Returns whether no other ledger has published under the name of the lane in a table with the transaction ids
    `held`; `application` is that of the lane. After an adoption the lanes of the next ledger begin at epoch 0 again, so
    lane and epoch of a row do not tell whose it is."""
    same_lane = {id_ for id_ in publishers(held) if id_.split("/")[2:4] == application.split("/")[2:4]}
    return same_lane <= {application}


def expected_with(numbers: Numbers, application: str, number: int) -> Numbers:
    """Returns what a table may hold that held one of `numbers`, once a turn is settled that is published there."""
    return {**numbers, application: [*numbers.get(application, ()), number]}


def expected_of_held(numbers: Numbers, application: str, held: Mapping[str, int]) -> Numbers:
    """Returns what a lane expects of a table that it takes as it is, with the transaction ids `held`: what is there,
    or a later turn that may still be published. The newest turn in the table has the last of the lane's ids that it
    holds; numbers of an earlier id would let an older copy pass."""
    ids = list(dict.fromkeys((*numbers, application)))  # in the order in which ledgers were adopted
    last = max((place for place, id_ in enumerate(ids) if id_ in held), default=0)
    found: dict[str, Sequence[int]] = dict.fromkeys(ids[:last], ())
    for id_ in ids[last:]:
        of_table = [held[id_]] if id_ in held else []
        found[id_] = of_table + [number for number in numbers.get(id_, ()) if number > held.get(id_, -1)]
    return found


def copied_from(held: Mapping[str, int], expected: Mapping[str, Numbers]) -> list[str]:
    """Returns the tables of `expected` of which a table with the transaction ids `held` is the newest copy: it holds a
    turn that is expected there, and a number stands for one turn and what that publishes."""
    return [place for place, ids in expected.items() if any(held.get(id_) in numbers for id_, numbers in ids.items())]


def _only(numbers: Numbers, application: str, of_id: Sequence[int]) -> Numbers:
    """Returns the numbers of a table whose newest turn is published under `application`."""
    return {**dict.fromkeys(numbers, ()), application: of_id}


OLDER_TABLE = "the table is an older copy"
OLDER_LEDGER = "as another ledger has stored it: ACKLINE_AUDIT is an older copy of the ledger"


def older_copy(turn: TurnId, table: str, held: Mapping[str, int], application: str, expected: Numbers) -> str | None:
    """Returns why an output table or the ledger is an older copy; None if the table holds what is expected.

    `turn` is the newest one of the lane, `held` are all transaction ids of the table, `application` is that of the
    lane. None, too, if the table holds nothing of the lane: then a user has made it anew.
    """
    last, numbers = held.get(application), expected.get(application, ())
    if last is None:
        earlier = {id_: held[id_] for id_ in expected if id_ in held}
        # Under an earlier id the ledger that was lost may have published later turns.
        if not earlier or any(expected[id_] and number >= expected[id_][0] for id_, number in earlier.items()):
            return None
        newest = max(number for of_id in expected.values() for number in of_id[:1])
        text = f"holds no turn of lane {turn.lane} that is as new, but older ones of the lane, {_published(newest)}"
        return f"the output table {scrub_address(table)} {text}"
    epoch, n = turn_in(last)
    if (epoch, n) <= (turn.epoch, turn.n) and (last in numbers or (not numbers and epoch < turn.epoch)):
        return None
    is_older = bool(numbers) and (epoch, n) < turn_in(numbers[0])
    text = f"holds turn {n} of lane {turn.lane}, epoch {epoch}, {_published(numbers[0]) if is_older else OLDER_LEDGER}"
    return f"the output table {scrub_address(table)} {text}"


def _published(number: int) -> str:
    epoch, n = turn_in(number)
    return f"and the ledger has published turn {n} of epoch {epoch} there: {OLDER_TABLE}"
