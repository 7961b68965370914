"""Handles single records here and now, by the code of today: for `ackline try`, and in the tests of users.

A record that is tried is read exactly, and passes decoders, filter, handler and steps in this process, in a task of its
own. So all that is raised and emitted meanwhile is of this record, or in a batch of one. The files of the task lie in a
temporary folder that is removed: nothing is stored, committed or produced, and no table of the ledger is touched. What
tokens of records in flight are signed with is forgotten, so no answer with such a token counts.
"""

import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ackline.answers.dead import begun_lane, dead_offsets
from ackline.errors import ConfigError
from ackline.handler import Dead, Record, Skip, Tier, tier_of
from ackline.lane.adapters import Adapters
from ackline.ledger.answers import TokenSigner
from ackline.ledger.copies import Rescued
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRange, arrays_of
from ackline.ledger.order import Order
from ackline.ledger.outcomes import is_of_class
from ackline.ledger.pending import PendingKind, PendingState
from ackline.ledger.turns import TurnId
from ackline.outputs.checks import targets_to_try
from ackline.scrub import frames_of_error, place_of_error
from ackline.steps.replay import replay_settings
from ackline.trees.in_process import manifests_of_batches
from ackline.worker.files import OutcomeTarget
from ackline.worker.outcomes import error_class_of, watched_by
from ackline.worker.records import GoneOffsets
from ackline.worker.settings import ReplaySettings, TaskSettings
from ackline.worker.streams import Streams, can_be_cancelled, load_functions_of_job
from ackline.worker.tasks import Batch, UnreadableRecords, batches_of_reader

LANE = "try"
"""The lane in the identity of a turn that is never stored. A backfill's lane has another form."""
MOST = 10
"""How many failing records are tried if no number is given."""

Wanted = Mapping[TopicPartition, Mapping[int, int]]
"""The offsets to try, each with the number of the attempt that its handler is given."""


@dataclass(frozen=True, slots=True)
class Emission:
    """What a step has emitted to a stream that another step or an output takes; `step` is `source` for the handler of
    the records."""

    step: str
    stream: str
    value: Any = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one record.

    `outcome` is what a run would store for the attempt: `acked`, `failed` (`dropped` under a guarantee that never
    retries), `skipped` or `in_flight`; `expired` or `compacted` if the log no longer holds the record. `error_class` of
    a record that its handler declared dead is `Dead`. `error_place` is the line of the handler's code that failed, such
    as `handlers/shop.py:41 in price`. `error_message` and `traceback` have what they share with the record masked.
    """

    topic: str
    partition: int
    offset: int
    outcome: str
    error_class: str | None = None
    error_message: str | None = None
    error_place: str | None = None
    emitted: tuple[Emission, ...] = ()
    """In the order of the calls; also what belongs to a record that failed later, which no run would publish."""
    traceback: str | None = None
    """The lines through which the exception came, outermost first, and the error; None if the handler raised none."""
    error: BaseException | None = field(default=None, repr=False, compare=False)
    """The exception itself, which may quote the record: never log it."""
    record: Record | None = field(default=None, repr=False, compare=False)
    """The record as it was read; None if the log does not hold it, or no handler can get it."""


class _Seen:
    """The witness of one record."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.emissions: list[Emission] = []

    def raised(self, error: BaseException) -> None:
        self.errors.append(error)

    def emitted(self, step: str, stream: str, value: Any) -> None:
        self.emissions.append(Emission(step, stream, value))

    def error_of(self, error_class: str | None, place: str | None) -> BaseException | None:
        """Returns the error that an outcome was made of; None if it was made of none, as that of a `Fail`."""
        for error in self.errors:
            words = {base.__name__ for base in (Dead, Skip) if issubclass(type(error), base)}
            if error_class in {error_class_of(error), *words} and place in (None, place_of_error(error)):
                return error
        return None


def signer(tps: Iterable[TopicPartition]) -> TokenSigner:
    """Returns what signs tokens that no lane takes: its key is random, and kept nowhere."""
    return TokenSigner(secrets.token_bytes(32), LANE, _turn(LANE), dict.fromkeys(tps, LANE))


def _turn(pipeline: str) -> TurnId:
    return TurnId(pipeline, LANE, 0, 1)


def try_offsets(adapters: Adapters, wanted: Wanted) -> Iterator[Tried]:
    """Yields what becomes of each offset, in the order of topic-partitions and offsets.

    Raises ConfigError for a handler that only Spark or a process of its own can run, and for an offset that the log has
    not reached; and what reading the log raises. A record that fails is an answer.
    """
    bounds = adapters.cluster.bounds(wanted)
    for tp, offsets in wanted.items():
        if (last := max(offsets, default=-1)) >= bounds[tp].end:
            raise ConfigError(f"{tp}: offset {last} is not in the log, which ends at {bounds[tp].end}", key="OFFSET")
    with TemporaryDirectory(prefix="ackline-try-") as folder:
        outputs = targets_to_try(adapters, _turn(adapters.pipeline.name), f"{folder}/outputs")
        tokens = signer(wanted) if adapters.pipeline.ack_topic is not None else None
        settings = replay_settings(adapters, True, outputs, tokens)
        settings = replace(settings, once=False, key_hash_secret=None, order=Order.NONE)
        settings = _in_this_process(settings, adapters.pipeline.name)
        _tier_of(settings)  # before a record is read
        attempts = {
            tp: tuple(ValuedRange(offset, offset + 1, number) for offset, number in sorted(offsets.items()))
            for tp, offsets in wanted.items()
        }
        with adapters.copy_reader(_rescued(adapters)) as reader:
            for batch in batches_of_reader(reader, attempts):
                yield from (try_batch(settings, single, folder) for single in _singles(batch))


def _rescued(adapters: Adapters) -> dict[TopicPartition, Rescued]:
    """Returns the copies of the lane's pending records."""
    newest = adapters.store.newest()
    return {tp: row.rescued for tp, row in newest.partitions.items()} if newest is not None else {}


def _in_this_process(settings: ReplaySettings, name: str) -> ReplaySettings:
    """Returns the settings for this process. Raises ConfigError if the handlers of the pipeline are to run in one of
    their own."""
    if settings.isolated and not (
        settings.isolated_for_timeout and can_be_cancelled(load_functions_of_job(settings), settings)
    ):
        raise ConfigError(
            f"the handler of {name} runs in a process of its own (`handler_isolation: process` or `record_timeout`), "
            f"because a record may kill or hang it, and `ackline try` has only this one; remove both keys, or try the "
            f"record with `ackline.testing.try_record`",
            key="handler_isolation",
        )
    return replace(settings, isolated=False)


def _singles(batch: Batch) -> Iterator[Batch]:
    """Yields each offset of a batch as a batch of its own."""
    if isinstance(batch, GoneOffsets):
        yield from (GoneOffsets(batch.tp, [offset], batch.outcome) for offset in batch.offsets)
        return
    unreadable = isinstance(batch, UnreadableRecords)
    records = batch.records if isinstance(batch, UnreadableRecords) else batch
    for row in range(len(records)):
        single = records.slice(row, 1)
        yield UnreadableRecords(single) if unreadable else single


def try_batch(settings: ReplaySettings, batch: Batch, folder: str) -> Tried:
    """Returns what becomes of a batch of one record, or of one gone offset; the files of its task are left in `folder`.

    Raises ConfigError for a handler that does not import, or that only Spark can run.
    """
    tier = _tier_of(settings)
    target = OutcomeTarget(f"{folder}/outcomes", _turn(LANE), date(1970, 1, 1), LANE)
    task = TaskSettings(target, settings, tier, batch.tp.topic, topic_partitions=(batch.tp,))
    seen = _Seen()
    with watched_by(seen):
        manifests = manifests_of_batches(task, [batch])
    row = _stored(target, manifests)
    record = next(iter(batch)) if not isinstance(batch, GoneOffsets | UnreadableRecords) else None
    error = seen.error_of(row.get("error_class"), row.get("error_place"))
    message = row.get("error_message")
    return Tried(
        *batch.tp, row["offset"], row["outcome"], row.get("error_class"), message, row.get("error_place"),
        tuple(seen.emissions), None if error is None else _text_of(error, row), error, record,
    )  # fmt: skip


def _tier_of(settings: ReplaySettings) -> Tier:
    """Returns the tier of the handler. Raises ConfigError for a handler that does not import, or that only Spark can
    run."""
    handler = load_functions_of_job(settings)
    tier = Tier.RECORD if isinstance(handler, Streams) else tier_of(handler)
    if tier is Tier.COLUMN:
        raise ConfigError(
            "a column handler runs in Spark's JVM, so it can't be tried here; try it in a backfill of these offsets",
            key="handler",
        )
    return tier


def _stored(target: OutcomeTarget, manifests: Sequence[pa.RecordBatch]) -> dict[str, Any]:
    """Returns the only row in the files of outcomes that the tasks have written."""
    paths = [path for batch in manifests for path in batch.column("path").to_pylist() if path is not None]
    outputs = {path for batch in manifests for path in batch.filter(batch["output"].is_valid())["path"].to_pylist()}
    files = [Path(target.root, path) for path in paths if path not in outputs]
    [row] = [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]
    found: dict[str, Any] = row
    return found


def _text_of(error: BaseException, row: Mapping[str, Any]) -> str:
    name, message = row.get("error_class") or error_class_of(error), row.get("error_message")
    return "\n".join([*frames_of_error(error), name if message is None else f"{name}: {message}"])


def attempts_of(adapters: Adapters, tp: TopicPartition, offsets: Collection[int]) -> dict[int, int]:
    """Returns for each offset the number of its next attempt in the live lane: 1 for one that is not pending."""
    newest = adapters.store.newest()
    if newest is None or tp not in newest.partitions:
        return dict.fromkeys(offsets, 1)
    named = arrays_of([OffsetRange(offset, offset + 1) for offset in sorted(offsets)])
    pending = newest.partitions[tp].state.pending.within(named)
    attempts = {offset: run.value.attempts + 1 for run in pending for offset in range(run.start, run.end)}
    return {offset: attempts.get(offset, 1) for offset in offsets}


def failing(adapters: Adapters, most: int, error_class: str | None = None) -> Wanted:
    """Returns up to `most` failing records of the lane, of one error class if it is given: those whose retry or dead
    letter is pending, in the order of their offsets, and then the dead ones, the last to die first.

    Raises ConfigError if the lane has not begun.
    """
    newest, wanted = begun_lane(adapters.store), dict[TopicPartition, dict[int, int]]()

    def is_failing(state: PendingState) -> bool:
        return state.kind not in (PendingKind.IN_FLIGHT, PendingKind.HELD_BACK) and is_of_class(
            state.error_class, error_class
        )

    pending = (
        (tp, offset, run.value.attempts + 1)
        for tp, settled in sorted(newest.partitions.items())
        for run in settled.state.pending.where(is_failing)
        for offset in range(run.start, run.end)
    )
    for tp, offset, attempt in islice(chain(pending, _dead(adapters, error_class)), most):
        wanted.setdefault(tp, {}).setdefault(offset, attempt)
    return wanted


def _dead(adapters: Adapters, error_class: str | None) -> Iterator[tuple[TopicPartition, int, int]]:
    found = dead_offsets(adapters.store)
    chosen = [(row.at, place) for place, (row, _) in found.items() if is_of_class(row.error_class, error_class)]
    for _, (tp, offset) in sorted(chosen, key=lambda each: (-_seconds(each[0]), each[1])):
        yield tp, offset, 1


def _seconds(at: datetime) -> float:
    return at.astimezone(UTC).timestamp()
