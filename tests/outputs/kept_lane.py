"""A lane whose records in flight have rows that wait, on real tables, and the model that it is compared with."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from ackline.delta.files import DataFileWriter
from ackline.delta.folder import Folder
from ackline.forms.form import EVERYTHING
from ackline.ledger.offsets import TopicPartition, ValuedRange
from ackline.ledger.outcomes import AnswerKind, Outcome, OutcomeRow
from ackline.ledger.pending import Pending, PendingKind, PendingRuns
from ackline.ledger.published import OutputsOfTurn, StagedFile, StagedTable, kept_after, without_effect
from ackline.ledger.turns import TurnId, TurnKind
from ackline.outputs import kept_rows
from ackline.outputs.output_table import OutputTable
from ackline.outputs.publish import publish_settled
from ackline.outputs.settled import settled_outputs
from ackline.outputs.staged import folder_name, manifest_name, staging_root
from ackline.pipeline.output_columns import STAGED_ANCHORS
from ackline.pipeline.outputs import OutputBlock
from ackline.pipeline.topology import topology
from ackline.stored import encode
from ackline.tables.turn_outcomes import TurnOutcomes
from tests.support.actor import Killed

ROWS = pa.schema(
    [("topic", pa.string()), ("partition", pa.int32()), ("offset", pa.int64()), ("end_offset", pa.int64()),
     ("attempt", pa.int32()), ("outcome", pa.string()), ("answer", pa.string()), ("error_class", pa.string())]
)  # fmt: skip

TP = TopicPartition("orders", 0)
NOW = datetime(2024, 5, 6, tzinfo=UTC)
TABLE, COLUMNS = "totals", {"value": "long"}
OUTCOMES = (Outcome.ACKED, Outcome.FAILED, Outcome.SKIPPED, Outcome.IN_FLIGHT, Outcome.IN_FLIGHT, Outcome.IN_FLIGHT)


@dataclass
class Store:
    """The ledger of a lane, as far as outputs need it."""

    root: str
    ledger: str = "ledger"
    rows: dict[TurnId, list[OutcomeRow]] = field(default_factory=dict)
    settlements: dict[TurnId, str] = field(default_factory=dict)

    executions: dict[TurnId, int] = field(default_factory=dict)
    dropped: set[tuple[TurnId, str]] = field(default_factory=set)
    published: set[TurnId] = field(default_factory=set)

    @property
    def live_folder(self) -> str:
        return f"{self.root}/shop"

    def ledger_id(self) -> str:
        return self.ledger

    def newest(self) -> Any:
        turn = max(self.settlements, key=lambda turn: (turn.epoch, turn.n), default=None)
        return None if turn is None else SimpleNamespace(turn=turn, outputs=self.settlements[turn], partitions={})

    def settlement(self, turn: TurnId) -> Any:
        return SimpleNamespace(turn=turn, outputs=self.settlements[turn], partitions={})

    def is_published(self, turn: TurnId) -> bool:
        return any(done.epoch == turn.epoch and done.n >= turn.n for done in self.published)

    def store_published(self, turn: TurnId) -> None:
        self.published.add(turn)

    def execution_of(self, turn: TurnId) -> int | None:
        return self.executions.get(turn)

    def given_up(self, turn: TurnId) -> set[str]:
        return {table for of, table in self.dropped if of == turn}

    def store_give_up(self, turn: TurnId, table: str) -> None:
        self.dropped.add((turn, table))

    def is_settled(self, turn: TurnId) -> bool:
        return turn in self.settlements

    def outcome_rows_of(self, turn: TurnId) -> Iterator[pa.RecordBatch]:
        rows = [
            {"topic": TP.topic, "partition": TP.partition, "offset": row.offset, "end_offset": row.end_offset,
             "attempt": row.attempt, "outcome": row.outcome.value, "answer": row.answer,
             "error_class": row.error_class}
            for row in self.rows[turn]
        ]  # fmt: skip
        yield from pa.Table.from_pylist(rows, schema=ROWS).to_batches()


WRITES = (
    (DataFileWriter, "finish"),
    (OutputTable, "append"),
    (Folder, "write_durably"),
    (Folder, "remove"),
    (Folder, "remove_tree"),
    (Store, "store_published"),
)


@dataclass
class Row:
    """An emitted row of the model: its number, the offsets of its records, and what became of each attempt."""

    number: int
    outcomes: dict[int, Outcome]

    @property
    def waits(self) -> bool:
        ends = self.outcomes.values()
        return Outcome.ACKED not in ends and Outcome.IN_FLIGHT in ends


@dataclass
class Lane:
    """A lane, its random turns, and the model: rows that wait, and rows that are published."""

    store: Store
    random: Random
    kills: bool = True
    turn: TurnId = field(default_factory=lambda: TurnId("shop", "live", 0, 0))
    offsets: int = 0
    numbers: int = 0
    pending: set[int] = field(default_factory=set)
    waiting: list[Row] = field(default_factory=list)
    late: list[Any] = field(default_factory=list)
    published: list[tuple[int, int, int, int, tuple[tuple[int, str], ...]]] = field(default_factory=list)

    @property
    def adapters(self) -> Any:
        blocks = [OutputBlock.model_validate({"from": "source.totals", "table": TABLE})]
        pipeline = SimpleNamespace(name="shop", topology=topology([], blocks))
        return SimpleNamespace(store=self.store, pipeline=pipeline, request=EVERYTHING)

    def partitions(self) -> Any:
        """The partition as a settlement holds it, with the records that are in flight."""
        pending = [ValuedRange(n, n + 1, Pending(PendingKind.IN_FLIGHT, 1, None, None)) for n in sorted(self.pending)]
        return {TP: SimpleNamespace(state=SimpleNamespace(pending=PendingRuns.of(pending)))}

    @property
    def in_flight(self) -> list[int]:
        found = {offset for row in self.waiting for offset, o in row.outcomes.items() if o is Outcome.IN_FLIGHT}
        return sorted(found)

    def step(self) -> None:
        """One turn: a run, an idle run, a void one, a skip, or a reset."""
        kind = self.random.choice(("run", "run", "run", "answers", "idle", "void", "skip", "reset"))
        before = self.turn
        self.turn = before._replace(n=before.n + 1)
        rows: list[OutcomeRow] = []
        staged: list[Row] = []
        if kind in ("run", "void"):
            staged, rows = self._handled()
        if kind in ("run", "answers", "void"):
            rows += self._answers(rows)
        plan_kind = {"skip": TurnKind.SKIP, "reset": TurnKind.RESET}.get(kind, TurnKind.RUN)
        if kind == "skip" and self.in_flight:
            start, end = sorted(self.random.choices(range(self.offsets + 1), k=2))
            rows.append(OutcomeRow(start, 0, Outcome.SKIPPED, NOW, None, end + 1))
        self.store.rows[self.turn] = rows
        self._stage(staged)
        outputs = self.store.settlements.get(before, "")
        if kind == "void":
            self.store.settlements[self.turn] = without_effect(outputs)
        else:
            self._settle(plan_of(self.turn, plan_kind), SimpleNamespace(turn=before, outputs=outputs), rows)
            self._model(staged, rows, plan_kind)
        self._publish(plan_kind)

    def _handled(self) -> tuple[list[Row], list[OutcomeRow]]:
        """Records of the turn with their outcomes, and rows that are anchored to some of them."""
        first, count = self.offsets, self.random.randint(1, 5)
        self.offsets += count
        outcomes = {offset: self.random.choice(OUTCOMES) for offset in range(first, first + count)}
        rows = [OutcomeRow(offset, 1, outcome, NOW) for offset, outcome in outcomes.items()]
        staged = []
        for _ in range(self.random.randint(0, 6)):
            chosen = sorted(self.random.sample(sorted(outcomes), self.random.randint(0, min(3, count))))
            self.numbers += 1
            staged.append(Row(self.numbers, {offset: outcomes[offset] for offset in chosen}))
        return staged, rows

    def _answers(self, rows: Sequence[OutcomeRow]) -> list[OutcomeRow]:
        waiting = {*self.in_flight, *(row.offset for row in rows if row.outcome is Outcome.IN_FLIGHT)}
        kinds = {
            AnswerKind.ACK: self.random.choice((Outcome.ACKED, Outcome.ACKED, Outcome.SKIPPED)),
            AnswerKind.FAIL: Outcome.FAILED, AnswerKind.TIMEOUT: Outcome.FAILED, AnswerKind.RENEW: Outcome.IN_FLIGHT,
        }  # fmt: skip
        chosen = [(offset, self.random.choice(list(kinds))) for offset in waiting if self.random.random() < 0.4]
        return [OutcomeRow(offset, 1, kinds[kind], NOW, answer=kind) for offset, kind in chosen]

    def _stage(self, rows: Sequence[Row], executions: Sequence[int] = (10, 11)) -> None:
        """Stages rows as the tasks of two executions do. Outcomes n name the second one."""
        self.store.executions.pop(self.turn, None)
        folder = f"{staging_root(self.adapters)}/{folder_name(self.turn)}"
        for execution in executions if rows else ():
            files: list[StagedFile] = []
            for part in (rows[::2], rows[1::2]):
                if part:
                    path = f"0-{execution:x}{len(files)}.parquet"
                    writer = DataFileWriter(Folder(folder), path, table_of(part).schema)
                    writer.write(table_of(part), row_group_size=2)
                    files.append(StagedFile(0, path, writer.finish().size, len(part)))
            staged = encode([StagedTable(TABLE, COLUMNS, (), files)])
            Folder(folder).write_durably(manifest_name(execution), staged.encode())
            self.store.executions[self.turn] = execution

    def _settle(self, plan: Any, before: Any, rows: Sequence[OutcomeRow]) -> None:
        outcomes = TurnOutcomes({TP: [row for row in rows if row.outcome is not Outcome.ACKED or row.answer]}, {}, {})
        before.partitions = self.partitions()
        self.pending |= {row.offset for row in rows if row.attempt and row.outcome is Outcome.IN_FLIGHT}
        self.pending -= {row.offset for row in rows if row.answer and row.outcome is not Outcome.IN_FLIGHT}
        self.pending -= {offset for row in rows if not row.attempt for offset in range(row.offset, row.end)}
        if plan.kind is TurnKind.RESET:
            self.pending = set()
        settled = self.partitions()
        stored: list[str] = []
        for _ in range(self.random.choice((1, 1, 2))):  # two that settle at once: one of them stores its settlement
            with killing(self):
                stored.append(settled_outputs(self.adapters, plan, before, settled, outcomes))
        if not stored:
            stored.append(settled_outputs(self.adapters, plan, before, settled, outcomes))
        self.store.settlements[plan.turn] = self.random.choice(stored)

    def _publish(self, kind: TurnKind) -> None:
        settled = self.store.settlements[self.turn]
        if kind is TurnKind.RESET:
            self.turn = TurnId("shop", "live", self.turn.epoch + 1, 0)
            self.store.settlements[self.turn] = settled
        newest: Any = SimpleNamespace(turn=self.turn, outputs=settled)
        with killing(self):
            publish_settled(self.adapters, newest)
        publish_settled(self.adapters, newest)
        if self.late and self.random.random() < 0.5:  # a process that has slept since it settled an earlier turn
            publish_settled(self.adapters, self.random.choice(self.late))
            publish_settled(self.adapters, newest)
        self.late.append(newest)

    def _model(self, staged: Sequence[Row], rows: Sequence[OutcomeRow], kind: TurnKind) -> None:
        ends = {row.offset: row.outcome for row in rows if row.answer and row.outcome is not Outcome.IN_FLIGHT}
        skipped = {offset for row in rows if not row.attempt for offset in range(row.offset, row.end)}
        still: list[Row] = []
        for row in [*self.waiting, *staged]:
            for offset, outcome in row.outcomes.items():
                if outcome is Outcome.IN_FLIGHT:
                    row.outcomes[offset] = Outcome.SKIPPED if offset in skipped else ends.get(offset, outcome)
            if Outcome.ACKED in row.outcomes.values() or not row.outcomes:
                first = next((o for o, outcome in row.outcomes.items() if outcome is Outcome.ACKED), -1)
                anchors = tuple((offset, outcome.value) for offset, outcome in row.outcomes.items())
                self.published.append((row.number, self.turn.epoch, self.turn.n, first, anchors))
            elif row.waits:
                still.append(row)
        self.waiting = [] if kind is TurnKind.RESET else still

    def check(self) -> None:
        """The table and the staging folder hold what the model has, and nothing else."""
        found = []
        if (Path(self.store.root) / "shop" / "outputs").exists():
            for row in DeltaTable(f"{self.store.root}/shop/outputs/{TABLE}").to_pyarrow_table().to_pylist():
                anchors = tuple((anchor["offset"], anchor["outcome"]) for anchor in row["_anchors"])
                offset = -1 if row["_offset"] is None else row["_offset"]
                found.append((row["value"], row["_epoch"], row["_turn"], offset, anchors))
        assert sorted(found) == sorted(self.published)
        kept = [file for table in kept_after(self.store.settlements[self.turn]) for file in table.files]
        assert len(kept) <= kept_rows.MOST_FILES
        root = Path(staging_root(self.adapters))
        values = [value for file in kept for value in pq.read_table(root / file.path)["value"].to_pylist()]
        assert sorted(values) == sorted(row.number for row in self.waiting)
        named = {file.path for file in kept}
        outputs = OutputsOfTurn.decode(self.store.settlements[self.turn])
        if outputs.tables or outputs.released:
            left = {str(path.relative_to(root)) for path in root.glob("*/*") if path.is_file()}
            assert left == named, "a turn that publishes or ends something leaves nothing else in staging"


def plan_of(turn: TurnId, kind: TurnKind = TurnKind.RUN, **more: Any) -> Any:
    """The plan of a turn, as far as outputs need it."""
    return SimpleNamespace(
        turn=turn, kind=kind, **{"empty": not kind.replays, "settings": {"outputs": [TABLE]}, "partitions": {}, **more}
    )


def table_of(rows: Sequence[Row]) -> pa.Table:
    anchors = [
        [{"topic": TP.topic, "partition": 0, "offset": offset, "attempt": 1} for offset in row.outcomes] for row in rows
    ]
    columns = [pa.array(anchors, STAGED_ANCHORS.type), pa.array([row.number for row in rows], pa.int64())]
    return pa.Table.from_arrays(columns, schema=pa.schema([STAGED_ANCHORS, ("value", pa.int64())]))


class killing:  # noqa: N801 - used as a function
    """Ends what is done inside at one of its next writes, before it or right after it, or not at all."""

    def __init__(self, lane: Lane) -> None:
        self._left = lane.random.randint(0, 8) if lane.kills and lane.random.random() < 0.7 else 1_000_000
        self._after = lane.random.random() < 0.5
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> None:
        for owner, name in WRITES:
            self._patch.setattr(owner, name, self._wrapped(getattr(owner, name)))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._patch.undo()
        return kind is Killed

    def _wrapped(self, write: Any) -> Any:
        def strike(*arguments: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left == 0 and not self._after:
                raise Killed
            result = write(*arguments, **more)
            if self._left == 0:
                raise Killed
            return result

        return strike


def staged_turn(
    root: Path, *outcomes: Outcome, ledger: str = "ledger", execution: int = 11
) -> tuple[Lane, list[OutcomeRow]]:
    """A lane in turn 1 with a record and a staged row for each outcome, and the rows of outcomes 1."""
    store = Store(str(root), ledger=ledger)
    lane = Lane(store, Random(1), kills=False, turn=TurnId("shop", "live", 0, 1))
    staged = [Row(number, {number: outcome}) for number, outcome in enumerate(outcomes)]
    lane._stage(staged, (10, execution))
    return lane, [OutcomeRow(number, 1, outcome, NOW) for number, outcome in enumerate(outcomes)]


def lane_with_rows(root: Path, *outcomes: Outcome) -> Lane:
    """A lane after a turn with a record and a row for each outcome."""
    lane, rows = staged_turn(root, *outcomes)
    turn_of(lane, rows)
    return lane


def turn_of(lane: Lane, rows: list[OutcomeRow]) -> OutputsOfTurn:
    """Settles the lane's turn with these rows. Returns what the settlement holds of outputs."""
    lane.store.rows[lane.turn], before = rows, lane.turn._replace(n=lane.turn.n - 1)
    of_before = SimpleNamespace(turn=before, outputs=lane.store.settlements.get(before, ""))
    lane._settle(plan_of(lane.turn), of_before, rows)
    return OutputsOfTurn.decode(lane.store.settlements[lane.turn])


def table_of_a_user(lane: Lane) -> OutputTable:
    """The output table, made anew by a user with another type of the column."""
    shutil.rmtree(f"{lane.store.root}/shop/outputs", ignore_errors=True)
    other = OutputTable(f"{lane.store.root}/shop/outputs/{TABLE}", {"value": "string"})
    assert other.append([], "a user", 1)
    return other


def newest_of(lane: Lane, **more: Any) -> Any:
    """The newest settlement of the lane."""
    values = {"turn": lane.turn, "outputs": lane.store.settlements[lane.turn], "partitions": lane.partitions()}
    return SimpleNamespace(**{**values, **more})


def next_turn(lane: Lane, offset: int) -> Any:
    """Settles one more turn with a row of an acked record. Returns its settlement."""
    lane.turn = lane.turn._replace(n=lane.turn.n + 1)
    lane._stage([Row(offset, {offset: Outcome.ACKED})])
    turn_of(lane, [OutcomeRow(offset, 1, Outcome.ACKED, NOW)])
    return newest_of(lane)


def offsets(root: Path) -> list[int]:
    """The records of the rows that the output table has, sorted."""
    found: list[int] = DeltaTable(f"{root}/shop/outputs/{TABLE}").to_pyarrow_table()["_offset"].to_pylist()
    return sorted(found)
