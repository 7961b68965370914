"""The addresses of the page's views and of Airflow's own pages, and ready-made operator actions. Pure.

An action is the configuration of a DAG run, and the command that does the same. The page is read-only. The trigger form
of Airflow 3.3 takes no values from an address (https://github.com/apache/airflow/issues/54800: a change that did was
taken back), so one link copies the configuration and opens the DAG, where the operator pastes it.

Once a configuration is pasted, the form of Airflow 3.3 shows the fields alone that are in it. So each configuration has
`confirm`, which an operator sets to true. As it is, the run is a dry run.
"""

import json
import shlex
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote, urlencode

from ackline.ledger.offsets import TopicPartition
from ackline.ledger.outcomes import Outcome
from ackline.ledger.pending import PendingKind
from ackline.ledger.turns import LIVE, TurnId
from ackline.ui.failing import Failure
from ackline.ui.readings import LaneReading


@dataclass(frozen=True, slots=True)
class Addresses:
    """Builds addresses. `page` is the path of the page, with a slash at its end; `airflow` that of Airflow, without."""

    page: str
    airflow: str

    @property
    def index(self) -> str:
        """The address of the view of all pipelines."""
        return self.page

    @property
    def all_failures(self) -> str:
        """The address of the view of the failures of all pipelines."""
        return f"{self.page}failures"

    def pipeline(self, name: str, lane: str = LIVE, start: int = 0) -> str:
        """Returns the address of the view of a lane, with its partitions from number `start` on."""
        return self._of(name, "", lane=None if lane == LIVE else lane, start=start or None)

    def partition(self, reading: LaneReading, tp: TopicPartition) -> str:
        """Returns the address of the view of a partition."""
        return self._of(reading.name, "/partition", topic=tp.topic, partition=tp.partition, lane=reading.lane)

    def partition_of(self, turn: TurnId, tp: TopicPartition) -> str:
        """Returns the address of the view of a partition in the turn's lane."""
        return self._of(turn.pipeline, "/partition", topic=tp.topic, partition=tp.partition, lane=turn.lane)

    def record(self, reading: LaneReading, tp: TopicPartition, offset: int) -> str:
        """Returns the address of the view of a record."""
        where = {"topic": tp.topic, "partition": tp.partition, "offset": offset, "lane": reading.lane}
        return self._of(reading.name, "/record", **where)

    def record_form(self, name: str) -> str:
        """Returns the address to which the form for an offset leads."""
        return self._of(name, "/record")

    def failures(self, reading: LaneReading, group: Failure) -> str:
        """Returns the address of the list of a group's records."""
        return self._of(
            reading.name, "/failures", kind=group.kind, error_class=group.error_class or None, lane=reading.lane
        )

    def step_failures(self, reading: LaneReading, step: str) -> str:
        """Returns the address of the list of the newest attempts that failed in a step."""
        return self._of(reading.name, "/failures", kind=Outcome.FAILED.value, step=step, lane=reading.lane)

    def turn(self, turn: TurnId, step: int = 0) -> str:
        """Returns the address of the view of a turn, or of the one that is `step` turns later."""
        return self._of(turn.pipeline, f"/turns/{turn.epoch}/{turn.n + step}", lane=turn.lane)

    def turn_of(self, reading: LaneReading, epoch: int, n: int) -> str:
        """Returns the address of the view of turn `n` of an epoch of the lane."""
        return self._of(reading.name, f"/turns/{epoch}/{n}", lane=reading.lane)

    def run(self, reading: LaneReading, run_id: str) -> str:
        """Returns the address of the view of a run."""
        return self._of(reading.name, "/run", run_id=run_id, lane=reading.lane)

    def dag(self, dag_id: str) -> str:
        """Returns the address of Airflow's page of a DAG."""
        return f"{self.airflow}/dags/{quote(dag_id, safe='')}"

    def dag_run(self, name: str, run_id: str) -> str:
        """Returns the address of Airflow's page of a run of a pipeline's DAG."""
        return f"{self.dag(f'replay__{name}')}/runs/{quote(run_id, safe='')}"

    def _of(self, name: str, path: str, **query: object) -> str:
        given = {key: value for key, value in query.items() if value is not None and (key, value) != ("lane", LIVE)}
        return f"{self.page}pipelines/{quote(name, safe='')}{path}" + (f"?{urlencode(given)}" if given else "")


RECENT_HOURS = 2
"""The number of last hours for which the page offers a backfill."""
BACKFILL, OPERATE = "backfill__", "operate__"
"""The prefixes of the DAGs that act on a pipeline. A link is shown only where Airflow has the DAG."""


@dataclass(frozen=True, slots=True)
class ReadyAction:
    """An operator action that is filled in. `dag_url` is None where Airflow has no such DAG, or the user can't read
    it."""

    title: str
    effect: str
    command: str
    dag_id: str
    conf: str
    dag_url: str | None


@dataclass(frozen=True, slots=True)
class ActionMaker:
    """Makes the actions of one pipeline. `dag_ids` are the DAGs that the user may read."""

    name: str
    lane: str
    dag_ids: Collection[str]
    addresses: Addresses

    def of_pipeline(
        self, waiting: bool = True, recent: bool = True, *, failing: bool = False, dead: bool = False,
        paused: bool = False, new_code: bool | None = True,
    ) -> list[ReadyAction]:  # fmt: skip
        """Returns what an operator may do with the whole pipeline. `waiting` is whether a retry is pending, `recent`
        whether there may be records of the last two hours, `dead` whether a record is dead, `paused` whether every
        partition is paused, `new_code` whether it runs other code now than that which failed; None if that is not
        known.

        Of a pipeline that is `failing`, the pause comes first and the retry last: until its cause is mended, a retry
        of everything uses up the attempts that are left. So by the code that has failed it is not offered.
        """
        last_hours = {"all": True, "from": f"{RECENT_HOURS}h ago"}
        options = ["--all", "--from", f"{RECENT_HOURS}h ago"]
        known = "" if new_code else " It is not known whether the code is another one since the records failed."
        everything = self._retry("Retry everything that is pending now", [])
        retry = [replace(everything, effect=everything.effect + known)] if waiting and new_code is not False else []
        pause = [] if paused else [self._pause()]
        redrive = [self._redrive("Handle the dead records again", None)] if dead else []
        backfill = [self._backfill("Backfill the last two hours", options, last_hours)] if recent else []
        return pause + redrive + backfill + retry if failing else retry + pause + redrive + backfill

    def of_partition(
        self, tp: TopicPartition, floor: int, complete_to: int, waiting: bool = True, pending: bool = True,
        log_start: int = 0,
    ) -> list[ReadyAction]:  # fmt: skip
        """Returns the actions that would change something in a partition. `waiting` is whether a retry is pending,
        `pending` whether anything holds the floor. Nothing can be read below `log_start`."""
        start = max(floor, log_start)
        return [
            *([self._retry(f"Retry what is pending in {tp} now", [tp])] if waiting else []),
            *([self._skip(f"Skip what is pending below {complete_to}", tp, f"{floor}:{complete_to}")] * pending),
            *([self._backfill(*_range(tp, start, complete_to))] if start < complete_to else []),
        ]

    def of_record(
        self, tp: TopicPartition, offset: int, pending: bool, waiting: bool = True, exists: bool = True
    ) -> list[ReadyAction]:
        """Returns what an operator may do with one record. `exists` is whether the lane has read it and the log holds
        it, so that a backfill can handle it again."""
        acts = []
        if pending:
            acts += [self._retry("Retry this record now", [tp], offsets=str(offset))] if waiting else []
            acts.append(self._skip("Skip this record", tp, str(offset)))
        return acts + ([self._backfill(*_range(tp, offset, offset + 1))] if exists else [])

    def of_failures(self, kind: str, error_class: str, *, failing: bool = False) -> list[ReadyAction]:
        """Returns what an operator may do with all records of an error class. The pause of a pipeline that is `failing`
        comes first."""
        pause = [self._pause()] if failing else []
        name = error_class or "no error class"
        if kind == "dead":
            return [*pause, self._redrive(f"Handle the dead records with {name} again", error_class)]
        if kind != PendingKind.RETRY.value:
            return []  # an answer or a dead letter ends these; a retry chooses none of them
        return [*pause, self._retry(f"Retry what failed with {name} now", [], error_class=error_class)]

    def _retry(self, title: str, tps: list[TopicPartition], **more: str) -> ReadyAction:
        options, conf = _where(tps, more)
        effect = "Pending retries are due at once. The next run makes the attempts; nothing is skipped."
        return self._action(title, effect, OPERATE, "retry", options, {"action": "retry", **conf})

    def _skip(self, title: str, tp: TopicPartition, offsets: str) -> ReadyAction:
        options, conf = _where([tp], {"offsets": offsets})
        effect = "Pending records are settled as skipped, so the floor can pass them. They are never handled again."
        return self._action(
            title, effect, OPERATE, "skip", [*options, "--reason", "…"], {"action": "skip", "reason": "", **conf}
        )

    def _pause(self) -> ReadyAction:
        effect = "No run reads it until it is resumed. Pending records stay pending; retention goes on."
        return self._action("Pause the pipeline", effect, OPERATE, "pause", [], {"action": "pause"})

    def _redrive(self, title: str, error_class: str | None) -> ReadyAction:
        """Returns the backfill of the dead records, of those of one error class if it is given."""
        chosen = {} if error_class is None else {"error_class": error_class}
        options = [] if error_class is None else ["--error-class", error_class]
        effect = "A lane of its own handles the dead records again. It never touches the consumer group."
        conf = {"all": True, "outcome": Outcome.DEAD.value, **chosen}
        return self._action(title, effect, BACKFILL, "dead", ["--redrive", *options], conf)

    def _backfill(self, title: str, options: list[str], conf: dict[str, Any]) -> ReadyAction:
        effect = "A lane of its own reads these records again. It never touches the consumer group."
        return self._action(title, effect, BACKFILL, "backfill", options, conf)

    def _action(
        self, title: str, effect: str, prefix: str, verb: str, options: list[str], conf: dict[str, Any]
    ) -> ReadyAction:
        dag_id = f"{prefix}{self.name}"
        lane = [] if self.lane == "live" or verb == "backfill" else ["--lane", self.lane]
        return ReadyAction(
            title,
            effect,
            shlex.join(["ackline", verb, self.name, *options, *lane]),
            dag_id,
            json.dumps({**conf, "confirm": False}, indent=2),
            self.addresses.dag(dag_id) if dag_id in self.dag_ids and not lane else None,  # it acts on the live lane
        )


def dead_command(name: str, lane: str, tp: TopicPartition, offset: int) -> str:
    """Returns the command that prints a dead record and where its dead letter is."""
    where = [] if lane == LIVE else ["--lane", lane]
    return shlex.join(["ackline", "dead", name, tp.topic, str(tp.partition), str(offset), *where])


def _range(tp: TopicPartition, start: int, end: int) -> tuple[str, list[str], dict[str, Any]]:
    chosen = f"{tp.topic}:{tp.partition}:{start}-{end}"
    return f"Backfill {tp} [{start}, {end})", [chosen], {"ranges": [chosen]}


def _where(tps: list[TopicPartition], more: dict[str, str]) -> tuple[list[str], dict[str, Any]]:
    """Returns the options of the command and the parameters of the DAG that choose partitions and records."""
    options: list[str] = []
    conf: dict[str, Any] = {}
    for tp in tps:
        options += ["--topic", tp.topic, "--partition", str(tp.partition)]
        conf |= {"topics": [tp.topic], "partitions": [tp.partition]}
    for name, value in more.items():
        options += [f"--{name.replace('_', '-')}", value]
        conf[name] = value
    return options, conf
