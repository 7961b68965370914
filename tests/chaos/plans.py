"""Judges plans when they are stored: what a run may read (I5, I8, I14, S45), and what an action may move (S36)."""

import json
from typing import TYPE_CHECKING, Any

from ackline.ledger.offsets import TopicPartition
from tests.chaos.account import TERMINAL, PartitionAccount, Turn, broken, rows_of, spread, subscribed
from tests.chaos.evidence import existing

if TYPE_CHECKING:
    from tests.chaos.epoch import Epoch

UNREAD = ("no longer subscribed", "no leader", "paused")
MOVES = ("skip", "reset")
ACTIONS = (*MOVES, "retry", "pause", "resume")


def check(epoch: "Epoch", n: int, plan: Any) -> None:
    """Judges plan n of an epoch whose turn n - 1 is settled."""
    for tp, planned in plan.partitions.items():
        account = epoch.partitions.get(tp)
        if account is None and plan.kind != "genesis":
            broken("I11", f"plan {n} is of {tp}, which has not joined the lane")
        if account is not None and (planned.floor, planned.complete_to) != (account.floor, account.complete_to):
            broken("I4", f"plan {n} of {tp} begins at {planned.complete_to}; turn {n - 1} left {account.complete_to}")
        if plan.kind != "run" and (planned.fresh or (planned.retries and plan.kind not in ("skip", "retry"))):
            broken("I11", f"plan {n}, {plan.kind}, reads {planned.fresh} of {tp}")
    if plan.kind == "run":
        _check_run(epoch, n, plan)
    elif plan.kind in ACTIONS:
        _check_action(epoch, n, plan)


def check_start(epoch: "Epoch", tp: TopicPartition, settled: Any, turn: Turn) -> None:
    """S32: a partition that joins a topic of the lane is read from its log start, whatever `start` is."""
    log = epoch.world.log_of(settled.topic_id, tp)
    assert log is not None
    joined = turn.plan is not None and any(
        other.topic == tp.topic for other in epoch.partitions.keys() - turn.plan.partitions
    )
    if joined and settled.state.complete_to > log.start:
        broken("S32", f"{tp} joins a known topic at {settled.state.complete_to}, its log starts at {log.start}")


def foreign(epoch: "Epoch", committed: Any) -> bool:
    """Returns whether a commit is not of this pipeline, by any ledger."""
    try:
        metadata = json.loads(committed.metadata)
        return bool(metadata["pipeline"] != epoch.rules.pipeline or not metadata["ledger"])
    except (ValueError, TypeError, KeyError):
        return True


def moved(epoch: "Epoch", n: int, plan: Any) -> dict[TopicPartition, Any]:
    """Returns the foreign commits that plan n found and no earlier turn has acknowledged, of subscribed partitions."""
    return {
        tp: planned.committed
        for tp, planned in plan.partitions.items()
        if planned.committed is not None
        and foreign(epoch, planned.committed)
        and tp in epoch.partitions
        and planned.committed.offset != epoch.partitions[tp].acknowledged[n - 1]
        and subscribed(plan.settings, tp.topic)
    }


def _check_run(epoch: "Epoch", n: int, plan: Any) -> None:
    if epoch.rules.on_external_reset != "restore" and (commits := moved(epoch, n, plan)):
        broken("S36", f"plan {n} goes on although the group was moved: {commits}")
    if missing := epoch.partitions.keys() - plan.partitions.keys():
        broken("I4", f"plan {n} has no row for {sorted(missing)}")
    retries = due = total = 0
    for tp, planned in plan.partitions.items():
        account = epoch.partitions[tp]
        if account.cut is not None and (planned.fresh or planned.retries):
            # No client finds a cut after which retention has removed every record up to complete_to.
            if planned.log.start < account.complete_to:
                broken("S42", f"plan {n} reads {tp}, whose log holds other records from {account.cut} on")
            account.cut = None
        _check_unread(n, tp, account, planned, plan.settings)
        _check_fresh(epoch, n, tp, account, planned, plan.settings)
        attempts = spread(planned.retries)
        order = epoch.turns[n].order
        for offset, attempt in attempts.items():
            _check_retry(n, tp, account, offset, attempt, plan.planned_at)
            if order != "none":
                _check_reads_in_order(epoch, n, tp, offset, order)
        retries, total = retries + len(attempts), total + len(attempts) + len(planned.fresh)
        if planned.why not in UNREAD:
            due += sum(
                waiting.kind == "retry" and waiting.due is not None and waiting.due <= plan.planned_at
                for offset, waiting in account.pending.items()
                if order == "none" or offset == account.floor
            )
    limit = plan.settings["max_records_per_run"]
    if total > limit:
        broken("I8", f"plan {n} has {total} offsets, max_records_per_run is {limit}")
    # A tenth of the limit is for fresh records; with a limit below ten, that is one offset in some turns. But a plan is
    # never empty while retries are due.
    if retries < min(due, limit - max(limit // 10, 1)) or (due and not total):
        broken("I8", f"plan {n} has {retries} of {due} due retries")


def _check_unread(n: int, tp: TopicPartition, account: PartitionAccount, planned: Any, settings: Any) -> None:
    """Paused and parked partitions are not read, and `why` names no other partition so."""
    parked = not subscribed(settings, tp.topic)
    if (parked or account.paused) and (planned.fresh or planned.retries):
        broken("I4", f"plan {n} reads {tp}: paused {account.paused}, parked {parked}")
    is_paused, is_parked = planned.why == "paused", planned.why == "no longer subscribed"
    if is_paused != (account.paused and not parked) or is_parked != parked:
        broken("I4", f"plan {n} has {planned.why!r} for {tp}: paused {account.paused}, parked {parked}")


def _has_skipped(epoch: "Epoch", n: int) -> bool:
    """Returns whether the run that plans turn n must read on, however far behind it is.

    A run that has skipped reads next, however much the log has grown and whatever others have done since. So does any
    run when the newest turn but actions is a skip.
    """
    run_id, no_run_since = epoch.turns[n].stored_by["plan"], True
    for m in range(n - 1, 0, -1):
        turn = epoch.turns.get(m)
        kind = turn.plan.kind if turn is not None and turn.plan is not None else "run"
        if turn is not None and kind == "skip":
            own = run_id in (turn.stored_by.get("plan"), turn.stored_by.get("settlement"))
            if no_run_since or own:
                return True
        no_run_since = no_run_since and kind != "run"
    return False


def _check_fresh(
    epoch: "Epoch", n: int, tp: TopicPartition, account: PartitionAccount, planned: Any, settings: Any
) -> None:
    fresh, behind = planned.fresh, settings["max_offset_behind"]
    if fresh.start < account.complete_to:
        broken("I4", f"plan {n} of {tp} begins at {fresh.start}; turn {n - 1} left {account.complete_to}")
    unread = planned.log.end - max(account.first_behind, planned.log.start)
    in_flight = sum(waiting.kind == "in_flight" for waiting in account.pending.values())
    most = settings["in_flight"]["max"] if settings["ack_topic"] else None
    if most is not None and len(fresh) > max(most - in_flight, 0):
        broken("I8", f"plan {n} reads {fresh} of {tp}, {in_flight} are in flight, in_flight.max is {most}")
    if behind and behind["policy"] == "skip" and account.first_in_flight <= account.floor:
        behind = None  # no skip passes a record in flight
    if behind and not _has_skipped(epoch, n) and planned.why not in UNREAD and unread > behind["offsets"]:
        broken("S45", f"plan {n} reads {tp}, {account.floor} of {planned.log}, which is too far behind: {behind}")
    log = epoch.world.log_of(account.topic_id, tp)
    # A topic that is created again between two requests of plan is found by replay, before and after it reads.
    if not fresh or log is None or account.topic_id in epoch.world.deleted_topics:
        return
    starts_late = account.complete_to < fresh.start != planned.log.start
    if fresh.end > log.readable_end(epoch.rules.isolation) or starts_late:
        broken("I14", f"plan {n} of {tp} reads {fresh} of [{log.start}, {log.end})")


def _check_retry(
    n: int, tp: TopicPartition, account: PartitionAccount, offset: int, attempt: int, planned_at: Any
) -> None:
    waiting = account.pending.get(offset)
    if waiting is None or waiting.kind not in ("retry", "held_back") or waiting.attempts != attempt - 1:
        broken("I5", f"plan {n} has attempt {attempt} at {tp} {offset}, where {waiting} is pending")
    if waiting.kind == "retry" and (waiting.due is None or waiting.due > planned_at):
        broken("I5", f"plan {n} has attempt {attempt} at {tp} {offset} at {planned_at}, due is {waiting.due}")


def _keys(epoch: "Epoch", tp: TopicPartition, order: str) -> dict[int, bytes | None]:
    """Returns the key of each record that a lane may read, which has the order; None for one without an order."""
    log = epoch.world.log_of(epoch.partitions[tp].topic_id, tp)
    records = [log.written[offset] for offset in existing(log, epoch.rules.isolation)] if log is not None else []
    return {record.offset: b"" if order == "partition" else record.key for record in records}


def _check_reads_in_order(epoch: "Epoch", n: int, tp: TopicPartition, offset: int, order: str) -> None:
    """With an order, no turn reads what is behind a record of its key that failed: it would read it in vain."""
    keys, pending = _keys(epoch, tp, order), epoch.partitions[tp].pending
    behind = [o for o, waiting in pending.items() if o < offset and waiting.kind != "held_back"]
    if first := [o for o in behind if keys.get(offset) is not None and keys.get(o) == keys.get(offset)]:
        broken("I19", f"plan {n} reads {tp} {offset}, which waits for {first} of the same key")


def check_calls_in_order(epoch: "Epoch", n: int, turn: Turn) -> None:
    """I19: no call of a key begins before each lower record of the key is settled, by turns before this one, or by the
    row of an earlier call in this one.

    The calls of a process whose outcomes do not count are no calls of the turn.
    """
    for tp, account in epoch.partitions.items():
        process = turn.stored_by.get("outcomes")
        is_other_log = any(cut.tp == tp for cut in epoch.of_all.cuts)
        calls = [offset for run_id, of_tp, offset in turn.calls if (run_id, of_tp) == (process, tp)]
        if not calls or is_other_log or (process, tp) in turn.misread:
            continue
        keys, settled = _keys(epoch, tp, turn.order), set(account.settled)
        rows = [row for of_tp, row in rows_of(turn.outcomes) if of_tp == tp and row.outcome in TERMINAL]
        taken = [row for of_tp, row in rows_of(turn.decisions) if of_tp == tp]
        for row in taken:  # retention had taken these before the turn read
            settled.update(range(row.offset, row.end) if row.outcome in ("expired", "compacted") else ())
        ended = {row.offset for row in rows}
        for offset in calls:
            settled |= {o for o in ended if o < offset and (o not in calls or calls.index(o) < calls.index(offset))}
            lower = [o for o, key in keys.items() if account.start <= o < offset and key == keys.get(offset)]
            if keys.get(offset) is not None and (early := [o for o in lower if o not in settled]):
                broken("I19", f"turn {n} calls the handler for {tp} {offset} before {early} of its key are settled")


def is_about_pending(planned: Any) -> bool:
    """Returns whether an action is about single pending offsets of a partition, and moves nothing there."""
    return bool(planned.retries)


def _check_action(epoch: "Epoch", n: int, plan: Any) -> None:
    for tp, planned in plan.partitions.items():
        account = epoch.partitions[tp]
        for offset in spread(planned.retries):
            if offset not in account.pending:
                broken("I4", f"plan {n}, {plan.kind}, is about {tp} {offset}, which is not pending")
        log = epoch.world.log_of(planned.topic_id, tp)
        end = 0 if log is None else log.readable_end(epoch.rules.isolation)
        if plan.kind in MOVES and planned.fresh.start > max(end, account.floor):
            broken("I14", f"plan {n}, {plan.kind}, moves {tp} to {planned.fresh.start}, its log ends at {end}")
    if plan.run_id.split("-")[0] in (*ACTIONS, "voidpause", "adopt"):
        return  # an operator has asked for it
    if epoch.rules.on_external_reset != "restore" and (commits := moved(epoch, n, plan)):
        _check_follow(epoch, n, plan, commits)
        return
    behind = plan.settings["max_offset_behind"]
    if plan.kind != "skip" or behind is None or behind["policy"] != "skip":
        broken("S36", f"plan {n} is a {plan.kind} by {plan.run_id}, without an operator or a setting that asks for it")
    for tp, planned in plan.partitions.items():
        account = epoch.partitions[tp]
        to, floor = min(planned.log.end - behind["offsets"], account.first_in_flight), account.floor
        if epoch.partitions[tp].paused or not subscribed(plan.settings, tp.topic):
            broken("S45", f"plan {n} skips {tp}, which is paused or parked")
        if planned.fresh.start != to or to <= floor:
            broken("S45", f"plan {n} skips {tp} from {floor} to {planned.fresh.start} of {planned.log}")


def _check_follow(epoch: "Epoch", n: int, plan: Any, commits: dict[TopicPartition, Any]) -> None:
    """A move forward is followed by a skip, a move back by a reset; each once, because that acknowledges it."""
    if epoch.rules.on_external_reset != "follow":
        broken("S36", f"plan {n} is a {plan.kind} by {plan.run_id}, and on_external_reset is not `follow`")
    targets = {tp: min(commits[tp].offset, planned.log.end) for tp, planned in plan.partitions.items() if tp in commits}
    back = any(to < epoch.partitions[tp].floor for tp, to in targets.items())
    if plan.kind != ("reset" if back else "skip"):
        broken("S36", f"plan {n} is a {plan.kind}, the group was moved to {targets}")
    for tp, planned in plan.partitions.items():
        to = targets.get(tp, epoch.partitions[tp].floor)
        if planned.fresh.start != to:
            broken("S36", f"plan {n} moves {tp} to {planned.fresh.start}; the group was moved to {to}")
