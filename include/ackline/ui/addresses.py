"""The addresses of the page's views, and of Airflow's own pages. Pure."""

from dataclasses import dataclass
from urllib.parse import quote, urlencode

from ackline.offsets import TopicPartition
from ackline.turns import LIVE, TurnId
from ackline.ui.failing import Failure
from ackline.ui.readings import LaneReading


@dataclass(frozen=True, slots=True)
class Addresses:
    """Builds addresses. `page` is the path of the page, with a slash at its end; `airflow` that of Airflow, without."""

    page: str
    airflow: str

    @property
    def index(self) -> str:
        """All pipelines."""
        return self.page

    def pipeline(self, name: str, lane: str = LIVE, start: int = 0) -> str:
        """Returns the view of a lane, with its partitions from number `start` on."""
        return self._of(name, "", lane=None if lane == LIVE else lane, start=start or None)

    pipeline_of = pipeline

    def partition(self, reading: LaneReading, tp: TopicPartition) -> str:
        """Returns the view of a partition."""
        return self._of(reading.name, "/partition", topic=tp.topic, partition=tp.partition, lane=reading.lane)

    def partition_of(self, turn: TurnId, tp: TopicPartition) -> str:
        """Returns the view of a partition of the turn's lane."""
        return self._of(turn.pipeline, "/partition", topic=tp.topic, partition=tp.partition, lane=turn.lane)

    def record(self, reading: LaneReading, tp: TopicPartition, offset: int) -> str:
        """Returns the story of a record."""
        where = {"topic": tp.topic, "partition": tp.partition, "offset": offset, "lane": reading.lane}
        return self._of(reading.name, "/record", **where)

    def record_form(self, name: str) -> str:
        """Returns where the form that asks for an offset leads to."""
        return self._of(name, "/record")

    def failures(self, reading: LaneReading, group: Failure) -> str:
        """Returns the list of the records of a group."""
        return self._of(
            reading.name, "/failures", kind=group.kind, error_class=group.error_class or None, lane=reading.lane
        )

    def turn(self, reading: LaneReading, turn: TurnId) -> str:
        """Returns the view of a turn."""
        return self.turn_of(reading, turn.epoch, turn.n)

    def turn_of(self, reading: LaneReading, epoch: int, n: int) -> str:
        """Returns the view of turn `n` of an epoch of the lane."""
        return self._of(reading.name, f"/turns/{epoch}/{n}", lane=reading.lane)

    def turn_of_lane(self, turn: TurnId, step: int) -> str:
        """Returns the view of the turn that is `step` turns later."""
        return self._of(turn.pipeline, f"/turns/{turn.epoch}/{turn.n + step}", lane=turn.lane)

    def run(self, reading: LaneReading, run_id: str) -> str:
        """Returns the view of a run."""
        return self._of(reading.name, "/run", run_id=run_id, lane=reading.lane)

    def dag(self, dag_id: str) -> str:
        """Returns Airflow's page of a DAG."""
        return f"{self.airflow}/dags/{quote(dag_id, safe='')}"

    def dag_run(self, name: str, run_id: str) -> str:
        """Returns Airflow's page of a run of a pipeline's DAG."""
        return f"{self.dag(f'replay__{name}')}/runs/{quote(run_id, safe='')}"

    def _of(self, name: str, path: str, **query: object) -> str:
        given = {key: value for key, value in query.items() if value is not None and (key, value) != ("lane", LIVE)}
        return f"{self.page}pipelines/{quote(name, safe='')}{path}" + (f"?{urlencode(given)}" if given else "")
