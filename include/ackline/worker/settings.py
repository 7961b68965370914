"""What a Spark task gets, its settings, where it proves that it may start, and what it returns, its manifest.

The folder of a turn's tasks below the audit root proves that they share the root, and that no part starts twice. The
driver writes a token into the folder before the job and removes it afterwards. A task looks for the token before its
first record, so an executor that joins later and does not share the root hands nothing out.

At most once a task also creates a marker, named after its part, before its first record. Where the marker exists, an
execution of this part may have called the handler, so the task refuses. Spark's attempt number proves nothing: it is 0
again in a stage that Spark submits anew.

Settle removes the tokens before the markers. A task creates its marker and then looks for its token again: if the
marker of an earlier execution is gone already, so is the token, and the task refuses all the same (I7).
"""

import os
import re
import socket
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from ackline.delta.errors import IgnoredStorageErrors, folder_errors, is_outage, storage_errors, unusable_folder
from ackline.delta.folder import Folder
from ackline.delta.object_store import is_remote, use_options
from ackline.errors import AcklineError, ConfigError, FatalError
from ackline.handler import Durations, StepCounts, Tier
from ackline.ledger.answers import TokenSigner
from ackline.ledger.copies import Rescued
from ackline.ledger.metrics import FetchTimes
from ackline.ledger.offsets import OffsetRange, TopicPartition, ValuedRanges
from ackline.ledger.order import Order, Waiting
from ackline.ledger.outcomes import Outcome
from ackline.ledger.published import StagedFile
from ackline.ledger.turns import TurnId
from ackline.pipeline.streams import Translation
from ackline.pipeline.topology import Topology
from ackline.worker.files import OutcomeTarget, WrittenFile

_FILE_COLUMNS = ("path", "size", "rows", "outcome", "stats", "modification_time")
_COLUMNS = {
    pa.string(): ("path", "outcome", "stats", "topic", "step"),
    pa.int32(): ("partition", "output"),
    pa.float64(): ("fetch_seconds", "fetch_seconds_max"),
    pa.int64(): (
        "size", "rows", "modification_time", "calls", "fetched", "out_of_range", "fetches", "trees", "unacked", "times",
        "nanoseconds", "nanoseconds_max", "executed", "emitted", "acked", "failed",
    ),
}  # fmt: skip
MANIFEST_SCHEMA = pa.schema([(name, kind) for kind, names in _COLUMNS.items() for name in names])


def manifest(
    files: Iterable[WrittenFile],
    counts: Mapping[tuple[TopicPartition, Outcome], int],
    waits: Mapping[TopicPartition, FetchTimes],
    calls: int,
    fetched: int,
    out_of_range: int,
    trees: int = 0,
    latency: Durations | None = None,
    steps: Mapping[str, StepCounts] | None = None,
    staged: Iterable[StagedFile] = (),
    unacked: int = 0,
) -> pa.RecordBatch:
    """Returns a row for each file, for each outcome of a topic-partition with its number of `rows`, for each
    topic-partition whose records the task waited for, and one for the task's own counts. Only the first kind has a
    `path`; the third has no `outcome`, and the fourth no `topic` either.

    With steps there is also a row for each `step`, and `trees` is how many trees the task sent to the acker or, as a
    negative number, has decided, `unacked` of them as `Unacked`. `times` and `nanoseconds` are the calls of a step or,
    without a `step`, the acked trees whose latency the task has measured. A row with an `output` names a staged
    file."""
    rows: list[dict[str, Any]] = [
        {name: getattr(file, name) for name in _FILE_COLUMNS} | {"outcome": file.outcome.value} for file in files
    ]
    for (tp, outcome), number in counts.items():
        rows.append({"topic": tp.topic, "partition": tp.partition, "outcome": outcome.value, "rows": number})
    for tp, wait in waits.items():
        times = {"fetches": wait.count, "fetch_seconds": wait.seconds, "fetch_seconds_max": wait.longest}
        rows.append({"topic": tp.topic, "partition": tp.partition, **times})
    totals = {"calls": calls, "fetched": fetched, "out_of_range": out_of_range, "trees": trees, "unacked": unacked}
    rows.append(totals | _spans(latency or Durations()))
    rows += [asdict(file) for file in staged]
    rows += [{"step": name, **done.numbers(), **_spans(done.execute)} for name, done in (steps or {}).items()]
    return pa.RecordBatch.from_pylist(rows, schema=MANIFEST_SCHEMA)


def durations_of(row: Any) -> Durations:
    """Returns the durations in a row of a step, or in that of a task's own counts."""
    return Durations(row.times, row.nanoseconds, row.nanoseconds_max)


def _spans(durations: Durations) -> dict[str, int]:
    return {"times": durations.count, "nanoseconds": durations.total, "nanoseconds_max": durations.longest}


@dataclass(frozen=True, slots=True)
class OutputTargets:
    """Where the tasks of a turn write what goes to outputs."""

    turn: TurnId
    folder: str
    """The turn's staging folder: a path or URI."""
    columns: Mapping[int, Mapping[str, str]]
    """The columns of each output table whose columns are known, by the number of the output."""
    inferred: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    """The columns that inference begins from, of each other output table; an output may be missing here."""
    producer: Mapping[str, str] | None = field(default_factory=dict, repr=False)
    """librdkafka's properties for outputs to topics; they hold secrets. None sends nothing, and only looks whether each
    row can be written."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a client works whose tasks run on the same machine, in processes that another has started: its working
    folder, and the folders that it imports from. There handlers find the files beside them, and relative paths lead to
    the same files as in the client."""

    folder: str
    number: tuple[str, int, int]
    """The boot of the machine, and device and number of the folder: a machine behind a tunnel has others."""
    paths: tuple[str, ...]

    @classmethod
    def of_this_process(cls, paths: Iterable[str]) -> "Place":
        """Returns the place of this process, which imports from `paths`."""
        try:
            folder = os.getcwd()
            return cls(folder, _number(folder), tuple(paths))
        except OSError:  # the folder was removed: no process can enter it
            return cls("", ("", 0, 0), tuple(paths))

    def enter(self) -> None:
        """Makes this the place of this process, if it is on this machine."""
        try:
            if _number(self.folder) != self.number:
                return
            os.chdir(self.folder)
        except OSError:
            return
        sys.path[:] = dict.fromkeys([*self.paths, *sys.path])


def _number(folder: str) -> tuple[str, int, int]:
    found, boot = os.stat(folder), Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text() if boot.exists() else "", found.st_dev, found.st_ino


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Which handler a job calls, and what becomes of its outcomes. The secrets in here (of the schema registry, the
    object store, the hashes of keys, the tokens) travel only inside the function of a task."""

    handler: str | None
    """`module:function`; unused where there is a `translation`."""
    deliver_tombstones: bool
    on_failure: Outcome
    """The outcome of a failure: FAILED, or DROPPED under a guarantee that never retries."""
    now: datetime | None
    """The time of all outcomes; None means the executor's clock."""
    not_before: datetime | None = None
    """When the driver has handed the job out, by its clock: the time of an outcome at least."""
    once: bool = False
    """A Spark task that failed is not tried again, because it may have handled its records."""
    record_outcomes: bool = True
    """Each outcome becomes a row; otherwise the tasks only count outcomes."""
    isolated: bool = False
    isolated_for_timeout: bool = False
    """`isolated` is set for `record_timeout` alone, which asynchronous handlers keep without it."""
    record_timeout: float | None = None
    """Seconds that one call of the handler may take. Needs `isolated`, but for asynchronous handlers."""
    order: Order = Order.NONE
    """What may not overtake."""
    concurrency: int | None = None
    """Calls of a record handler under way at once in each task; None means one, and 64 for asynchronous handlers."""
    translation: Translation | None = None
    """The streams, where records are decoded, filtered or split between handlers."""
    store_options: Mapping[str, str] | None = field(default=None, repr=False)
    """How tasks reach the object store of the tables (`audit.object_store`); None if the tables are on a disk."""
    topology: Topology | None = None
    tracking: bool = True
    """A record is acked only once all that came of it is. Otherwise it is acked when its handler has returned."""
    outputs: "OutputTargets | None" = None
    debug_sample: float | None = None
    """The part of the records whose edges the tasks log, above 0 and at most 1; None logs none."""
    key_hash_secret: bytes | None = field(default=None, repr=False)
    """What the keys of records are hashed with; None if the table gets no hashes."""
    tokens: TokenSigner | None = None
    """Makes the tokens of records; None if no record may be in flight."""
    in_flight_timeout: timedelta | None = None
    """How long a record is in flight if its handler names no time; None means without an end."""
    place: Place | None = None
    """Where tasks work; None where they are as Spark starts them."""

    def enter(self) -> None:
        """Prepares this process for a task: its place, and its object store."""
        use_options(self.store_options)
        if self.place is not None:
            self.place.enter()


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    """How to read Kafka: librdkafka's properties, without a group. They hold secrets, so they are never shown, and
    travel only inside the function of a task that reads retries."""

    properties: Mapping[str, str] = field(repr=False)
    isolation_level: str
    rescued: Mapping[TopicPartition, Rescued] = field(default_factory=dict, repr=False)
    """The copies of the job's retries: what is gone from its topic is read from there."""


FIRST_UNREADABLE = 2**63 // 1000 + 1
"""The lowest timestamp, in milliseconds, that Spark's source can't convert."""


_FOLDER = ".tasks"
_TOKEN = "driver-"
_TURN = re.compile(r"(?P<lane>.+)-(?P<epoch>\d+)-(?P<n>\d+)")


@dataclass(frozen=True, slots=True)
class TaskFolder:
    """The folder by which a task proves that it may start, as the task gets it from the driver."""

    uri: str
    token: str
    once: bool

    def check(self, part: int | str) -> None:
        """Checks, before the first record of a part, that this process may hand its records out. Raises ConfigError if
        the folder is not shared or can't be written, FatalError if the part was started before, and TransientError if
        the object store does not answer."""
        folder, host = Folder(self.uri), socket.gethostname()

        def error_of(error: BaseException) -> AcklineError:
            if is_remote(self.uri) and is_outage(error):
                return unusable_folder(self.uri, error)
            return ConfigError(
                f"the executor on {host} can't use {self.uri}: "
                f"{getattr(error, 'strerror', None) or type(error).__name__}; give its user the right to write below "
                f"ACKLINE_AUDIT",
                key="ACKLINE_AUDIT",
            )

        with storage_errors(self.uri, error_of):
            self._find_token(folder, host)
            if not self.once:
                mark = f"part-{part}-{uuid.uuid4()}"
                folder.write(mark, b"")
                folder.remove(mark)
                return
            if not folder.create_exclusively(f"part-{part}"):
                raise FatalError(
                    "Spark tried a task again under at_most_once; the task's records may have been handled, so it "
                    "stops here"
                )
            self._find_token(folder, host)

    def _find_token(self, folder: Folder, host: str) -> None:
        # No cache of a file system holds an answer for this name, which is new: the first look asks the server.
        if folder.read(self.token) is None:
            raise ConfigError(
                f"the executor on {host} does not see {self.uri}/{self.token}: executors and driver do not share "
                f"ACKLINE_AUDIT, or another run has settled the turn meanwhile. Set ACKLINE_AUDIT to a folder that "
                f"all machines mount at the same path",
                key="ACKLINE_AUDIT",
            )


@dataclass(frozen=True, slots=True)
class ReplayJob:
    """What one turn reads and handles, and how."""

    target: OutcomeTarget
    settings: ReplaySettings
    kafka: KafkaSettings
    fresh: Mapping[TopicPartition, OffsetRange]
    retries: Mapping[TopicPartition, ValuedRanges[int]]
    """The offsets that are tried again, each with the number of its attempt."""
    max_rate: int | None = None
    """Records a second that the handler gets at most, from all tasks together."""
    isolation_reason: str = ""
    """Why `settings.isolated` is set although the pipeline file has no `handler_isolation: process`; else empty."""
    exact_from: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The offset from which on the log may hold timestamps that Spark's source can't read. A topic-partition without
    such an offset is missing."""
    tuples_a_record: float | None = None
    """How many tuples the busiest step got for each record in the turn before; None if that is not known."""
    folder: TaskFolder | None = None
    """Where the tasks prove that they may start, if it is open already: at most once, before the turn is claimed."""
    max_clock_skew: float = 5.0
    """Seconds that the clock of an executor may differ from the driver's."""
    progress: str | None = None
    """Where the tasks write how much they have handled; None if no run shows it."""
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    """With an `order`: what holds back records of each topic-partition from the begin of the turn on."""


@contextmanager
def open_task_folder(table: str, turn: TurnId, once: bool) -> Iterator[TaskFolder]:
    """Creates the folder of a turn beside the outcomes table at `table`, with a token for the tasks of one job. Removes
    the token at the end of the context. Under at most once the markers stay until `remove_task_folders`. Raises
    TransientError if the object store does not answer, and FatalError if the folder can't be written."""
    uri = f"{_folder_of_turns(table)}/{quote(turn.lane, safe='')}-{turn.epoch}-{turn.n}"
    folder = Folder(uri)
    token = f"{_TOKEN}{uuid.uuid4()}"
    with folder_errors(uri):
        folder.write_first(token, b"driver")
    try:
        yield TaskFolder(uri, token, once)
    finally:
        folder.remove(token)
        folder.remove_if_empty()


def remove_task_folders(table: str, turn: TurnId) -> None:
    """Removes the folders of this turn and of the lane's earlier ones, which a killed driver may have left. Call it
    after settlement n is stored. What can't be removed stays until a later call."""
    turns = Folder(_folder_of_turns(table))
    with IgnoredStorageErrors():
        for name in turns.names():
            match = _TURN.fullmatch(name)
            if match is None or match["lane"] != quote(turn.lane, safe=""):
                continue
            if (int(match["epoch"]), int(match["n"])) <= (turn.epoch, turn.n):
                folder = Folder(f"{turns.uri}/{name}")
                for file in folder.names():
                    if file.startswith(_TOKEN):
                        folder.remove(file)
                left = folder.names()
                if not any(file.startswith(_TOKEN) for file in left):  # while one is left, the markers stay (I7)
                    for file in left:
                        folder.remove(file)
                    folder.remove_if_empty()


def _folder_of_turns(table: str) -> str:
    return f"{os.path.dirname(table.rstrip('/'))}/{_FOLDER}"


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """What each Spark task of a job needs, beside its records."""

    target: OutcomeTarget
    replay: ReplaySettings
    tier: Tier
    topic: str | None
    """The only topic of the job, None if there are several."""
    rate: float | None = None
    """Records a second that this task may give to the handler; None means no limit."""
    folder: TaskFolder | None = None
    """Where this task proves that it may start; None if it needs no proof: on one machine, unless at most once."""
    topic_partitions: tuple[TopicPartition, ...] = ()
    """With steps: the topic-partitions of the job, in their order. Rows of trees hold their indexes."""
    parts: int = 1
    """With steps: how many tasks share the tuples of a step with `group_by`."""
    progress: str | None = None
    """Where this task writes how much it has handled; None if no run shows it."""
    waiting: Mapping[TopicPartition, Waiting] = field(default_factory=dict)
    """What holds back records of each topic-partition when the task begins, with an `order`."""
    gets_batches: bool = False
    """Whether one call of a handler may get many records. With an `order`, none of them may wait for another."""
