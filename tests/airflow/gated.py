"""A pipeline in a real Airflow whose tasks wait at gates, in the middle of their work, and what becomes of it."""

import os
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deltalake import DeltaTable

from ackline.local.airflow_servers import LocalAirflow
from ackline.local.broker import Broker
from ackline.local.processes import wait_until
from ackline.tables.lease import ProcessIdentity
from ackline.verify.check import Sources, check
from tests.airflow.project import Project, drivers, produce

SECONDS = 400.0
"""The limit of a wait, which ends as soon as it can. On a loaded machine a task may be queued for minutes."""
GATES = {"planned": "plan", "handling": "replay", "acked": "settle"}
"""Where a process waits, and its task: after the plan is stored, in a handler, and between settlement and commit."""
CODE = '''
import os, pathlib, time
from ackline.lane.listeners import ListenerThread
from ackline.listener import Listener
from tests.support import journal

ListenerThread.__init__.__defaults__ = (600.0,)  # a listener that waits at a gate is not given up

def wait_at(pipeline, gate):
    """Waits as long as the gate is closed: its file is there. Says in another file which process waits."""
    closed = pathlib.Path(__file__).with_name(f"{pipeline} {gate}")
    if closed.exists():
        closed.with_suffix(".reached").write_text(str(os.getpid()))
    while closed.exists():
        time.sleep(0.05)

def handle(record):
    journal.handle(record)
    wait_at(record.topic, "handling")

class Gates(Listener):
    def on_planned(self, plan):
        for tp in plan.partitions:
            wait_at(tp.topic, "planned")

    def on_acked(self, turn, counts):
        for tp in counts:
            wait_at(tp.topic, "acked")
'''
"""The project's own code. Files are named after the pipeline or its topic, which have the same name."""


class Gated:
    """A pipeline whose topic has its name, and its DAG."""

    def __init__(self, project: Project, airflow: LocalAirflow, name: str) -> None:
        self.project, self.airflow, self.name, self.dag = project, airflow, name, f"replay__{name}"
        (project.include / "gated.py").write_text(CODE)
        project.write(name, name, handler="gated:handle", listener="gated:Gates")
        airflow.unpause(self.dag)

    def produce(self, records: int = 3) -> None:
        produce(self.project.bootstrap, self.name, *[{}] * records)

    def run(self) -> str:
        """Starts a run, waits until it has ended, and returns its state."""
        return self.airflow.wait(self.dag, self.airflow.trigger(self.dag), SECONDS)

    def start_to(self, gate: str) -> str:
        """Closes a gate, starts a run, and returns it at once."""
        self._file(gate).touch()
        return self.airflow.trigger(self.dag)

    def reached(self, gate: str, run: str) -> ProcessIdentity:
        """Waits until a process of the run waits at the gate, and returns it."""
        reached = self._file(gate).with_suffix(".reached")
        assert wait_until(lambda: reached.exists() and bool(reached.read_text()), SECONDS), self.airflow.task_states(
            self.dag, run
        )
        process = ProcessIdentity.of(int(reached.read_text()))
        assert process is not None
        return process

    def open(self, gate: str) -> None:
        """Opens a gate."""
        self._file(gate).unlink()

    def _file(self, gate: str) -> Path:
        return self.project.include / f"{self.name} {gate}"

    def mark(self, run: str, task: str, state: str) -> None:
        """Marks a task by hand, as a user does on Airflow's page."""
        self.airflow.call("PATCH", f"/dags/{self.dag}/dagRuns/{run}/taskInstances/{task}", {"new_state": state})

    def wait(self, run: str) -> str:
        """Waits until the run has ended, and returns its state."""
        return self.airflow.wait(self.dag, run, SECONDS)

    def attempts(self, run: str, task: str) -> int:
        """How often Airflow has tried a task."""
        return int(self.airflow.call("GET", f"/dags/{self.dag}/dagRuns/{run}/taskInstances/{task}")["try_number"])

    def committed(self) -> int | None:
        return self.project.committed(self.name, self.name)

    def outcomes(self) -> list[tuple[int, int, str]]:
        return self.project.outcomes(self.name)

    def calls(self) -> Counter[int]:
        """How often the handler was called for each offset."""
        return Counter(call.offset for call in self.project.calls() if call.topic == self.name)

    def check_all_acked(self, records: int, calls: set[int]) -> None:
        """Checks that each record is acked once and committed, that the handler was called for each so often as `calls`
        allow, that the checker finds nothing, and that no process of a driver is left."""
        assert self.outcomes() == [(offset, 1, "acked") for offset in range(records)]
        assert self.committed() == records
        assert set(self.calls().values()) <= calls, self.calls()
        self.judge(settled=True)
        assert wait_until(lambda: not drivers(self.name), SECONDS), drivers(self.name)

    def judge(self, settled: bool = False) -> None:
        """Fails if the checker finds a violation; with `settled`, also if something is not settled."""
        if not settled and not DeltaTable.is_deltatable(f"{self.project.audit}/{self.name}/settlements"):
            assert self.committed() is None
            return
        journal = self.project.folder / f"{self.name}.journal"
        calls = [call for call in self.project.calls() if call.topic == self.name]
        journal.write_text("".join(f"{c.topic}\t{c.partition}\t{c.offset}\t{c.attempt}\t{c.pid}\n" for c in calls))
        bootstrap, audit, group = self.project.bootstrap, self.project.audit, f"{self.name}-group"
        sources = Sources(bootstrap, audit, self.name, group, [self.name], journal=os.fspath(journal))
        report = check(sources, max_retries=2, settled=settled)
        assert not report.violations, "\n".join(report.violations)


@dataclass(slots=True)
class Waiting:
    """A run that waits at a gate."""

    lane: Gated
    gate: str
    run: str
    process: ProcessIdentity

    @property
    def calls(self) -> set[int]:
        """How often a record may be handled if the task at the gate is done again."""
        return {1, 2} if self.gate == "handling" else {1}

    def wait_for_end_of_process(self) -> None:
        assert wait_until(lambda: not self.process.alive(), SECONDS), self.gate

    def wait_for_end_of_driver(self) -> None:
        assert wait_until(lambda: not drivers(self.lane.name), SECONDS), self.gate


def gated_pipeline(project: Project, airflow: LocalAirflow, broker: Broker) -> Gated:
    """A pipeline with three records."""
    name = f"p{uuid.uuid4().hex[:8]}"
    broker.create_topic(name)
    made = Gated(project, airflow, name)
    made.produce()
    return made


def runs_at(gates: Iterable[str], project: Project, airflow: LocalAirflow, broker: Broker) -> list[Waiting]:
    """Returns a run of a pipeline of its own for each gate, waiting there: what happens next happens to all at once."""
    lanes = [(gated_pipeline(project, airflow, broker), gate) for gate in gates]
    runs = [lane.start_to(gate) for lane, gate in lanes]
    return [Waiting(lane, gate, run, lane.reached(gate, run)) for (lane, gate), run in zip(lanes, runs, strict=True)]
