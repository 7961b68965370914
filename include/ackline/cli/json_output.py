"""The JSON that commands print for a program. Its keys are a public format."""

import json
from collections.abc import Iterable
from typing import Any

from ackline.audit.store import LedgerStore
from ackline.lease import Holder
from ackline.offsets import TopicPartition, count
from ackline.planning import NO_LEADER
from ackline.steps.overview import OpenTurn
from ackline.steps.run import RunResult
from ackline.steps.status import PartitionStatus, TopicStatus
from ackline.turns import Plan


def print_json(value: object) -> None:
    """Print a value as one line of JSON."""
    print(json.dumps(value))


def print_json_list(values: Iterable[object]) -> int:
    """Print values as a JSON list, a line each and each as it comes. Returns how many they were."""
    printed = 0
    for value in values:
        print(",\n" if printed else "[", json.dumps(value), sep="", end="")
        printed += 1
    print("]" if printed else "[]")
    return printed


def plan_json(plan: Plan, adopted: bool) -> dict[str, Any]:
    """Returns a plan as JSON. In the plan of an operator action, its reason is why each partition reads nothing."""
    return {
        "pipeline": plan.turn.pipeline,
        "lane": plan.turn.lane,
        "epoch": plan.turn.epoch,
        "turn": plan.turn.n,
        "kind": plan.kind.value,
        "adopted": adopted,
        "planned_at": plan.planned_at.isoformat(),
        "partitions": [
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start": planned.fresh.start,
                "end": planned.fresh.end,
                "retries": count(planned.retries),
                "floor": planned.floor,
                "complete_to": planned.complete_to,
                "log_start": planned.log.start,
                "log_end": planned.log.end,
                "why": planned.why or plan.reason or None,
            }
            for tp, planned in sorted(plan.partitions.items())
        ],
    }


def leaderless_json(partitions: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    """Returns partitions that have not joined the lane because they have no leader. Everything but `why` is unknown."""
    unknown = dict.fromkeys(("start", "end", "floor", "complete_to", "committed", "log_start", "log_end", "lag"))
    empty: dict[str, Any] = {**unknown, "retries": 0, "outcomes": {}, "pending": {}, "why": NO_LEADER}
    return [{"topic": tp.topic, "partition": tp.partition, **empty} for tp in partitions]


def run_json(ran: RunResult, store: LedgerStore) -> dict[str, Any]:
    """Returns the closing line of `ackline run --json`: `records` counts handler calls, `outcomes` offsets."""
    last = ran.plans[-1] if ran.plans else None
    settlement = store.settlement(last.turn) if last else None
    committed = ran.commit.committed if ran.commit else {}
    partitions = []
    for tp, settled in sorted(settlement.partitions.items() if settlement else ()):
        plans = [plan.partitions[tp] for plan in ran.plans if tp in plan.partitions]
        partitions.append(
            {
                "topic": tp.topic,
                "partition": tp.partition,
                "start": plans[0].fresh.start if plans else settled.state.complete_to,
                "end": plans[-1].fresh.end if plans else settled.state.complete_to,
                "retries": sum(count(planned.retries) for planned in plans),
                "outcomes": dict(settled.counts),
                "pending": {kind.value: number for kind, number in settled.state.pending_by_kind().items()},
                "floor": settled.state.floor,
                "complete_to": settled.state.complete_to,
                "committed": committed[tp].offset if tp in committed else None,
                "log_end": plans[-1].log.end if plans else None,
                "lag": plans[-1].log.end - settled.state.floor if plans else None,
                "why": plans[-1].why if plans else None,
            }
        )
    return {
        "pipeline": store.pipeline,
        "turn": last.turn.n if last else None,
        "records": ran.calls,
        "outcomes": dict(ran.outcomes),
        "partitions": partitions + leaderless_json(ran.leaderless),
        "missing_topics": list(ran.missing),
        # Only with an ack topic: without one, zeros would read as an ack topic that got no answers.
        **({"answers": dict(ran.answers), "warnings": ran.warnings} if ran.answers is not None else {}),
    }


def status_json(status: PartitionStatus) -> dict[str, Any]:
    """Returns a partition as `ackline status --json` prints it."""
    return {
        "lane": status.lane,
        "epoch": status.epoch,
        "topic": status.topic,
        "partition": status.partition,
        "log_start": status.log_start,
        "log_end": status.log_end,
        "committed": status.committed,
        "floor": status.floor,
        "complete_to": status.complete_to,
        "pending": {kind.value: number for kind, number in status.pending.items()},
        "next_due": status.next_due.isoformat() if status.next_due else None,
        "lag": status.lag,
        "lag_seconds": status.lag_seconds,
        "read": status.read,
        "due": status.due,
        "oldest_pending_offset": status.oldest_pending_offset,
        "oldest_pending_at": status.oldest_pending_at.isoformat() if status.oldest_pending_at else None,
        **status.totals,
        "fetches": status.fetches,
        "fetch_seconds_mean": status.fetch_seconds_mean,
        "fetch_seconds_max": status.fetch_seconds_max,
        "why": status.why,
    }


def open_turn_json(open_turn: OpenTurn | None) -> dict[str, Any] | None:
    """Returns the open turn of a lane as `ackline status --json` prints it, with the process that works on it."""
    if open_turn is None:
        return None
    plan, holder = open_turn.plan, open_turn.holder
    return {
        "epoch": plan.turn.epoch,
        "turn": plan.turn.n,
        "kind": plan.kind.value,
        "planned_at": plan.planned_at.isoformat(),
        "run_id": plan.run_id,
        "actor": plan.actor,
        "holder": None if holder is None else _holder_json(holder),
    }


def _holder_json(holder: Holder) -> dict[str, Any]:
    return {
        "run_id": holder.lease.run_id,
        "host": holder.lease.host,
        "process": holder.lease.pid,
        "since": holder.lease.since.isoformat(),
        "unrenewed_seconds": round(holder.unrenewed.total_seconds(), 1),
        "state": holder.state.value,
    }


def topic_json(status: TopicStatus) -> dict[str, Any]:
    """Returns a topic as `ackline status --json` prints it."""
    return {
        "topic": status.topic,
        "partitions": status.partitions,
        "log_start": status.log_start,
        "log_end": status.log_end,
        "committed": status.committed,
        "floor": status.floor,
        "read": status.read,
        "pending": {kind.value: number for kind, number in status.pending.items()},
        "due": status.due,
        "oldest_pending_at": status.oldest_pending_at.isoformat() if status.oldest_pending_at else None,
        "lag": status.lag,
        "lag_seconds": status.lag_seconds,
        **status.totals,
        "fetches": status.fetches,
        "fetch_seconds_max": status.fetch_seconds_max,
    }


def missing_json(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the topics and partitions that the file names and the broker does not have."""
    missing = list(names)
    return {
        "missing_topics": [name for name in missing if not name.endswith("]")],
        "missing_partitions": [name for name in missing if name.endswith("]")],
    }
