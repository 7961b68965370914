"""The rounds of a soak: in each, every pipeline of the fleet runs once, while things break.

Two runners take the runs of a round from one queue. `steady` is never killed, so what leaks shows there. `bounced` is
killed as a scheduler and a worker are; the run that it had is taken up by the next round, in either process. All
choices are drawn from the seed and the number of the round: which pipelines, and after how many runs of the round a
strike falls. How far a run is by then depends on the machine.
"""

import json
import os
import queue
import random
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import KafkaException

from ackline.local.broker import Broker
from tests.e2e.commands import ROOT
from tests.soak.fleet import Fleet, Member
from tests.soak.judge import Sample
from tests.soak.processes import Hung, Process
from tests.soak.writer import Writer

MINUTE = 60.0
LATE = 1.1
"""A round counts as late from so many times its length."""
RECENT = 10
"""Samples, one a minute, whose turns the files on the disk are compared with."""
STRIKES = {
    "worker killed": (3, 1),
    "backfill": (2, 1),
    "retention": (2, 1),
    "rivals": (2, 1),
    "scheduler killed": (5, 2),
    "clock forward": (12, 3),
    "clock back": (3, 2),
    "maintenance": (3, 2),
    "schema change": (8, 3),
    "broker bounced": (6, 4),
    "JVM killed": (9, 4),
}
"""Every how many rounds something happens, and in which round first, counted from 0. Nothing happens in the first one:
each lane begins there, at the log start, before retention takes a record that would be no part of it."""
LEAST_ROUNDS = 5
"""Rounds in which each of STRIKES happens once."""
FORWARD, BACK = 1_800, 600
"""Seconds by which the time jumps for good, and by which the clock of one run is behind."""
DOWN_SECONDS = 2
DRAIN_ROUNDS, DRAIN_JUMP = 15, 600
"""When all has been written, so many rounds at most reach the end; each is so many seconds after the one before."""
ACCEPTED = ("TransientError", "RangeGone", "TurnVoided")
"""Errors that a run may end with while things break: the next one goes on."""


@dataclass(slots=True)
class Tally:
    turns: int = 0
    runs: int = 0
    strikes: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    """What must not happen, whatever breaks."""
    backfills: dict[tuple[str, str], bool] = field(default_factory=dict)
    """Whether a backfill is settled, by pipeline and id."""
    lag: dict[str, int] = field(default_factory=dict)
    settled: dict[str, bool] = field(default_factory=dict)
    rounds: int = 0
    late: int = 0
    """Rounds that took longer than they should."""


class Soak:
    """A soak in progress. A round begins `every` seconds after the one before."""

    def __init__(
        self, broker: Broker, fleet: Fleet, seed: int, rate: int, say: Callable[[str], None], every: float = MINUTE
    ) -> None:
        self.broker, self.fleet, self.seed, self.say, self.every = broker, fleet, seed, say, every
        self.writer = Writer(fleet, seed, rate)
        self.steady, self.bounced = Process("steady", fleet.folder), Process("bounced", fleet.folder)
        self.tally, self.samples, self.skew, self.begun = Tally(), list[Sample](), 0.0, time.monotonic()
        self.aged = 600.0
        """Seconds after which maintenance takes what was replaced for a week old."""
        self._lock = threading.Lock()
        self._beside: list[threading.Thread] = []
        self._seconds: list[float] = []
        self._of_steady: list[float] = []
        self._notes: list[str] = []
        self._heap: float | None = None
        self._sampled = self._cpu = 0.0

    def run(self, minutes: float) -> None:
        """Runs rounds for so many minutes, at least LEAST_ROUNDS, and then until all that was written is settled."""
        self.aged = min(600.0, minutes * MINUTE / 6)
        for process in (self.steady, self.bounced):
            process.start()
        self.writer.start()
        self.begun = self._sampled = time.monotonic()
        self._cpu = self.steady.cpu_seconds()
        number = 0
        while number < LEAST_ROUNDS or time.monotonic() - self.begun < minutes * MINUTE:
            self.round(number)
            number += 1
        self.say("writing ends; the rest is drained")
        self.writer.stop()
        self.drain(number)

    def stop(self) -> None:
        self.writer.stop()
        for process in (self.steady, self.bounced):
            process.stop()

    # ---- a round --------------------------------------------------------------------------------------------------

    def round(self, number: int) -> None:
        """Runs every pipeline once, with what is due in this round; ends `every` seconds after it began, or later."""
        rng, begun = random.Random(f"{self.seed}/{number}"), time.monotonic()
        due = [name for name, (every, first) in STRIKES.items() if number >= first and (number - first) % every == 0]
        orders = self._orders(rng, number, due)
        strikes = {name: rng.randrange(len(orders)) for name in due if name in self._strikes()}
        self._notes += due
        self._take(orders, strikes, rng)
        for thread in self._beside:
            thread.join()
        self._beside.clear()
        spent = time.monotonic() - begun
        self.tally.rounds += 1
        self.tally.late += spent > LATE * self.every
        time.sleep(max(0.0, self.every - spent))

    def _orders(self, rng: random.Random, number: int, due: list[str]) -> list[dict[str, Any]]:
        members = list(self.fleet.members)
        rng.shuffle(members)
        orders: list[dict[str, Any]] = []
        for member in members:
            order = {"do": "run", "name": member.name, "round": number, "attempt": 0, "skew": self.skew}
            orders.append(order)
        if "clock back" in due:
            orders[0]["behind"] = BACK
            self.tally.strikes["clock back"] += 1
        self.tally.strikes.update(name for name in ("rivals", "backfill") if name in due)
        if "rivals" in due:  # next to each other, so that both runners have one
            for at in sorted(rng.sample(range(len(orders)), 2), reverse=True):
                orders.insert(at, orders[at] | {"attempt": 1})
        if "backfill" in due:
            chosen = rng.choice([m for m in members if m.kind not in ("answered", "once", "none")])
            with suppress(KafkaException):  # the broker is away
                orders.insert(rng.randrange(len(orders)), self._backfill(chosen, number))
        return orders

    def _backfill(self, member: Member, number: int) -> dict[str, Any]:
        """Returns the order of a backfill beside the live lane, of all that the log of partition 0 has."""
        start, end = self.fleet.bounds(member, 0)
        return {"do": "backfill", "name": member.name, "round": number, "attempt": 0, "skew": self.skew,
                "id": f"b{number}", "ranges": [f"{member.topic}:0:{start}-{end}"] if start < end else []}  # fmt: skip

    def _take(self, orders: list[dict[str, Any]], strikes: dict[str, int], rng: random.Random) -> None:
        """Has both runners carry out the orders, and takes a sample each minute meanwhile."""
        waiting: queue.SimpleQueue[tuple[int, dict[str, Any]]] = queue.SimpleQueue()
        for numbered in enumerate(orders):
            waiting.put(numbered)

        def work(process: Process) -> None:
            with suppress(queue.Empty):
                while True:
                    at, order = waiting.get_nowait()
                    for name, place in strikes.items():
                        if place == at:
                            self._strike(name, rng)
                    self._one(process, order)

        threads = [threading.Thread(target=work, args=(process,)) for process in (self.steady, self.bounced)]
        for thread in threads:
            thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(1)
                self._sample_when_due()

    def _one(self, process: Process, order: dict[str, Any]) -> None:
        if process is self.steady and self._heap is None:
            self._heap = (process.ask({"do": "figures"}) or {}).get("jvm_heap")
        try:
            answer = process.ask(order)
        except Hung as hung:
            with self._lock:
                self.tally.wrong.append(f"{order['name']}: {hung}")
            process.start()
            return
        with self._lock:
            self.tally.runs += 1
            if answer is None:
                self.tally.errors["the runner died"] += 1
                if process is self.steady:
                    self.tally.wrong.append(f"{order['name']}: the steady runner died; see {process.log}")
                return
            self._note(process, order, answer)
        if "crash" in answer and process is self.bounced:
            process.restart()  # its JVM was killed, so a driver of Airflow would have ended

    def _note(self, process: Process, order: dict[str, Any], answer: dict[str, Any]) -> None:
        tally, name = self.tally, order["name"]
        tally.turns += answer["turns"]
        tally.outcomes.update(answer.get("outcomes", {}))
        if order["do"] == "backfill":
            if not answer.get("empty"):
                tally.backfills[name, order["id"]] = answer.get("settled", False)
        elif "lag" in answer:
            tally.lag[name], tally.settled[name] = answer["lag"], answer["settled"]
        else:
            tally.settled[name] = False
        if "crash" in answer:
            tally.errors["crash"] += 1
            tally.texts.setdefault("crash", f"{name}: {answer['crash'][:1500]}")
            killed = process is self.bounced and tally.strikes["JVM killed"]
            if not killed:
                tally.wrong.append(f"{name}: {answer['crash']}")
        elif "error" in answer:
            kind, text = answer["error"]
            tally.errors[kind] += 1
            tally.texts.setdefault(f"{kind}: {text[:50]}", f"{name}: {kind}: {text[:400]}")
            if kind not in ACCEPTED:
                tally.wrong.append(f"{name}: {kind}: {text[:400]}")
        else:
            self._seconds.append(answer["seconds"])
            if process is self.steady:
                self._of_steady.append(answer["seconds"])

    # ---- what breaks ----------------------------------------------------------------------------------------------

    def _strikes(self) -> dict[str, Callable[[random.Random], object]]:
        return {
            "worker killed": lambda rng: rng.choice((self.steady, self.bounced)).kill_worker(rng.randrange(8)),
            "scheduler killed": lambda _: self.bounced.kill(),
            "JVM killed": lambda _: self.bounced.kill_jvm(),
            "broker bounced": lambda _: self._in_thread(self._bounce),
            "maintenance": lambda _: self._in_thread(self._maintain),
            "retention": self._expire,
            "schema change": lambda _: self._change_schema(),
            "clock forward": lambda _: self._forward(),
        }

    def _strike(self, name: str, rng: random.Random) -> None:
        self.tally.strikes[name] += 1
        self._strikes()[name](rng)

    def _in_thread(self, function: Callable[[], None]) -> None:
        thread = threading.Thread(target=function)
        self._beside.append(thread)
        thread.start()

    def _bounce(self) -> None:
        self.broker.kill()
        time.sleep(DOWN_SECONDS)
        self.broker.start()

    def _forward(self) -> None:
        self.skew += FORWARD

    def _change_schema(self) -> None:
        """Records have one field more from now on, and tables one column."""
        self.writer.era += 1

    def _expire(self, rng: random.Random) -> None:
        """Removes records of two pipelines, of one also such as no run has read."""
        chosen = rng.sample([member for member in self.fleet.members if member.kind != "compacted"], 2)
        for member, share in zip(chosen, (0.5, 1.0), strict=True):
            for partition in range(member.partitions):
                with suppress(KafkaException):  # the broker is away
                    start, end = self.fleet.bounds(member, partition)
                    self.fleet.expire(member, partition, start + int((end - start) * share))

    def _maintain(self) -> None:
        command = [sys.executable, "-m", "tests.soak.maintenance", str(self.fleet.folder), str(self.aged)]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        with self._lock:
            if done.returncode:
                self.tally.wrong.append(f"maintenance: {done.stderr[-1500:]}")
            else:
                counts = json.loads(done.stdout.splitlines()[-1])
                self.tally.strikes.update({f"files {name}": counts[name] for name in ("compacted", "removed")})

    # ---- what is measured -----------------------------------------------------------------------------------------

    def _sample_when_due(self) -> None:
        """Takes a sample and prints it, a minute after the last one."""
        if time.monotonic() - self._sampled < MINUTE:
            return
        self._sampled = time.monotonic()
        with self._lock:
            seconds, of_steady, notes, heap = self._seconds, self._of_steady, self._notes, self._heap
            self._seconds, self._of_steady, self._notes, self._heap = [], [], [], None
        cpu = self.steady.cpu_seconds()
        figures: dict[str, float] = self.steady.figures() | self.disk()
        if heap is not None:
            figures["jvm_heap"] = heap
        if of_steady:
            figures["turn_median"] = statistics.median(of_steady)
            figures["turn_cpu"] = (cpu - self._cpu) / len(of_steady)
        self._cpu = cpu
        figures["turns"] = self.tally.turns
        earlier = self.samples[-RECENT].figures["turns"] if len(self.samples) >= RECENT else self.tally.turns
        if self.tally.turns > earlier:
            figures["files_per_turn"] = figures["files"] / (self.tally.turns - earlier)
        if settled := sum(self.tally.outcomes.values()):
            figures["bytes_per_outcome"] = figures["bytes"] / settled
        self.samples.append(Sample((self._sampled - self.begun) / MINUTE, figures))
        self._print(figures, seconds, notes)

    def _print(self, figures: dict[str, float], seconds: list[float], notes: list[str]) -> None:
        p50, p95 = np.percentile(seconds, [50, 95]) if seconds else (0.0, 0.0)
        mib = {name: figures.get(name, 0) / 2**20 for name in ("driver_rss", "jvm_rss", "jvm_heap", "bytes")}
        tally, of = self.tally, {name: f"{value:.0f}" for name, value in figures.items()}
        parts = [
            f"{(self._sampled - self.begun) / MINUTE:5.1f} min",
            f"{tally.rounds} rounds, {tally.turns} turns, {sum(self.writer.delivered.values())} records, "
            f"{sum(tally.outcomes.values())} outcomes, lag {sum(tally.lag.values())}",
            f"{len(seconds)} runs, {p50:.1f} s, 95 % {p95:.1f} s, CPU {figures.get('turn_cpu', 0):.2f} s",
            f"RSS {mib['driver_rss']:.0f}+{mib['jvm_rss']:.0f} MiB, heap {mib['jvm_heap']:.0f}",
            f"open {of.get('driver_fds')}+{of.get('jvm_fds')}, threads {of.get('driver_threads')}+"
            f"{of.get('jvm_threads')}, temporary {of.get('temporary')}",
            f"disk {of['files']} files, {mib['bytes']:.1f} MiB, staged {of['staged']}",
            ", ".join(notes) or "calm",
            f"failed {dict(tally.errors)}",
        ]
        self.say("; ".join(parts))

    def disk(self) -> dict[str, float]:
        """Returns how many files and bytes are below the audit root, and how many staging folders."""
        files, size, staged = 0, 0, 0
        for parent, folders, names in os.walk(self.fleet.audit):  # not `rglob`, which raises for a removed folder
            staged += len(folders) if Path(parent).name == ".staging" else 0
            for name in names:
                with suppress(FileNotFoundError):
                    size += Path(parent, name).stat().st_size
                    files += 1
        return {"files": files, "bytes": size, "staged": staged}

    # ---- the end --------------------------------------------------------------------------------------------------

    def drain(self, number: int) -> None:
        """Runs all that is not settled, each time DRAIN_JUMP seconds later, until all is settled."""
        for each in range(DRAIN_ROUNDS):
            self.skew += DRAIN_JUMP
            self.writer.answer_all()
            common = {"round": number + each, "attempt": 0, "skew": self.skew}
            orders = [
                {"do": "run", "name": member.name, **common}
                for member in self.fleet.members
                if each < 2 or not self.tally.settled.get(member.name)
            ]
            orders += [
                {"do": "backfill", "name": name, "id": lane, **common}
                for (name, lane), settled in self.tally.backfills.items()
                if not settled
            ]
            if not orders:
                return
            self._take(orders, {}, random.Random(0))
            self.say(f"drained {each + 1}: {len(orders)} runs, lag {sum(self.tally.lag.values())}")
        left = [name for name, settled in self.tally.settled.items() if not settled]
        lanes = [f"{name} {lane}" for (name, lane), settled in self.tally.backfills.items() if not settled]
        self.tally.wrong += [f"{name} is not settled after {DRAIN_ROUNDS} runs without faults" for name in left + lanes]
