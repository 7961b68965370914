"""Plans, judged: what a run may read (I5, I8, I14, S45), and what an act may move (S36)."""

import json
from typing import TYPE_CHECKING, Any

from ackline.offsets import TopicPartition as At
from tests.chaos.account import Place, Turn, broken, spread, subscribed

if TYPE_CHECKING:
    from tests.chaos.epoch import Epoch

UNREAD = ("no longer subscribed", "no leader", "paused")
MOVES = ("skip", "reset")
ACTS = (*MOVES, "pause", "resume")


def check(epoch: "Epoch", n: int, plan: Any) -> None:
    """Judge plan n, of an epoch whose turn n - 1 is settled."""
    for tp, one in plan.partitions.items():
        place = epoch.places.get(tp)
        if place is None and plan.kind != "genesis":
            broken("I11", f"plan {n} is of {tp}, which has not joined the lane")
        if place is not None and (one.floor, one.complete_to) != (place.floor, place.complete_to):
            broken("I4", f"plan {n} of {tp} begins at {one.complete_to}; the rows say {place.complete_to}")
        if plan.kind != "run" and (one.fresh or one.retries):
            broken("I11", f"plan {n}, {plan.kind}, reads {one.fresh} of {tp}")
    if plan.kind == "run":
        _check_run(epoch, n, plan)
    elif plan.kind in ACTS:
        _check_act(epoch, n, plan)


def check_start(epoch: "Epoch", tp: At, one: Any, turn: Turn) -> None:
    """S32: a partition that joins a topic which the lane knows is read from its log start, whatever `start` says."""
    log = epoch.world.log_of(one.topic_id, tp)
    assert log is not None
    known = turn.plan is not None and any(
        other.topic == tp.topic for other in epoch.places.keys() - turn.plan.partitions
    )
    if known and one.state.complete_to > log.start:
        broken("S32", f"{tp} joins a known topic at {one.state.complete_to}, its log starts at {log.start}")


def foreign(epoch: "Epoch", committed: Any) -> bool:
    """Whether a commit is nobody's of this pipeline, whatever the ledger."""
    try:
        found = json.loads(committed.metadata)
        return bool(found["pipeline"] != epoch.rules.pipeline or not found["ledger"])
    except (ValueError, TypeError, KeyError):
        return True


def moved(epoch: "Epoch", n: int, plan: Any) -> dict[At, Any]:
    """What plan n found moved by somebody, and not answered yet, where the file subscribes."""
    return {
        tp: one.committed
        for tp, one in plan.partitions.items()
        if one.committed is not None
        and foreign(epoch, one.committed)
        and tp in epoch.places
        and one.committed.offset != epoch.places[tp].answers[n - 1]
        and subscribed(plan.settings, tp.topic)
    }


def _check_run(epoch: "Epoch", n: int, plan: Any) -> None:
    if epoch.rules.on_external_reset != "restore" and (found := moved(epoch, n, plan)):
        broken("S36", f"plan {n} goes on, and the group was moved: {found}")
    if missing := epoch.places.keys() - plan.partitions.keys():
        broken("I4", f"plan {n} does not say why {sorted(missing)} get nothing")
    retries = due = total = 0
    for tp, one in plan.partitions.items():
        place = epoch.places[tp]
        _check_unread(n, tp, place, one, plan.settings)
        _check_fresh(epoch, n, tp, place, one, plan.settings)
        attempts = spread(one.retries)
        for offset, attempt in attempts.items():
            _check_retry(n, tp, place, offset, attempt, plan.planned_at)
        retries, total = retries + len(attempts), total + len(attempts) + len(one.fresh)
        if one.why not in UNREAD:
            due += sum(w.due is not None and w.due <= plan.planned_at for w in place.pending.values())
    limit = plan.settings["max_records_per_run"]
    if total > limit:
        broken("I8", f"plan {n} holds {total} offsets, max_records_per_run is {limit}")
    # A tenth is for what is new, of a single offset one turn in ten; but with retries due no plan holds nothing.
    if retries < min(due, limit - max(limit // 10, 1)) or (due and not total):
        broken("I8", f"plan {n} holds {retries} of {due} due retries")


def _check_unread(n: int, tp: At, place: Place, one: Any, settings: Any) -> None:
    """Paused and parked partitions are not read, and no others are taken for them."""
    parked = not subscribed(settings, tp.topic)
    if (parked or place.paused) and (one.fresh or one.retries):
        broken("I4", f"plan {n} reads {tp}: paused {place.paused}, parked {parked}")
    if (one.why == "paused") != (place.paused and not parked) or (one.why == "no longer subscribed") != parked:
        broken("I4", f"plan {n} says {one.why} of {tp}: paused {place.paused}, parked {parked}")


def _has_skipped(epoch: "Epoch", n: int) -> bool:
    """Whether there was a skip and no run since, or whoever plans has made a skip: who has skipped reads next, however
    much the log has grown and whatever others have done in between."""
    by, since = epoch.turns[n].by["plan"], True
    for m in range(n - 1, 0, -1):
        turn = epoch.turns.get(m)
        kind = turn.plan.kind if turn is not None and turn.plan is not None else "run"
        if turn is not None and kind == "skip" and (since or by in (turn.by.get("plan"), turn.by.get("settlement"))):
            return True
        since = since and kind != "run"
    return False


def _check_fresh(epoch: "Epoch", n: int, tp: At, place: Place, one: Any, settings: Any) -> None:
    fresh, behind = one.fresh, settings["max_offset_behind"]
    if fresh.start < place.complete_to:
        broken("I4", f"plan {n} of {tp} begins at {fresh.start}; the rows say {place.complete_to}")
    unread = one.log.end - max(place.floor, one.log.start)
    if behind and not _has_skipped(epoch, n) and one.why not in UNREAD and unread > behind["offsets"]:
        broken("S45", f"plan {n} reads {tp}, {place.floor} of {one.log}, which is too far behind: {behind}")
    if not fresh:
        return
    window = settings["max_uncommitted"]
    if settings["guarantee"] == "at_least_once" and fresh.end > place.floor + window:
        broken("I8", f"plan {n} of {tp} ends at {fresh.end}, floor {place.floor}, max_uncommitted {window}")
    log = epoch.log(tp, place)
    if place.topic_id in epoch.world.gone:
        return  # created again between two looks of plan: replay asks for the id again, before and after it reads
    if fresh.end > log.readable_end(epoch.rules.isolation) or place.complete_to < fresh.start != one.log.start:
        broken("I14", f"plan {n} of {tp} reads [{fresh.start}, {fresh.end}) of [{log.start}, {log.end})")


def _check_retry(n: int, tp: At, place: Place, offset: int, attempt: int, planned_at: Any) -> None:
    waiting = place.pending.get(offset)
    if waiting is None or waiting.kind != "retry" or waiting.attempts != attempt - 1:
        broken("I5", f"plan {n} wants attempt {attempt} at {tp} {offset}, where {waiting} waits")
    if waiting.due is None or waiting.due > planned_at:
        broken("I5", f"plan {n} wants attempt {attempt} at {tp} {offset} at {planned_at}, due is {waiting.due}")


def _check_act(epoch: "Epoch", n: int, plan: Any) -> None:
    for tp, one in plan.partitions.items():
        place = epoch.places[tp]
        log = epoch.world.log_of(one.topic_id, tp)
        end = 0 if log is None else log.readable_end(epoch.rules.isolation)
        if plan.kind in ("skip", "reset") and one.fresh.start > max(end, place.floor):
            broken("I14", f"plan {n}, {plan.kind}, moves {tp} to {one.fresh.start}, its log ends at {end}")
    if plan.run_id.split("-")[0] in ACTS:
        return  # an operator's word
    if epoch.rules.on_external_reset != "restore" and (moves := moved(epoch, n, plan)):
        _check_follow(epoch, n, plan, moves)
        return
    behind = plan.settings["max_offset_behind"]
    if plan.kind != "skip" or behind is None or behind["policy"] != "skip":
        broken("S36", f"plan {n} is a {plan.kind} by {plan.run_id}, and nobody asked for one")
    for tp, one in plan.partitions.items():
        to = one.log.end - behind["offsets"]
        if epoch.places[tp].paused or not subscribed(plan.settings, tp.topic):
            broken("S45", f"plan {n} skips {tp}, which runs leave alone")
        if one.fresh.start != to or to <= epoch.places[tp].floor:
            broken("S45", f"plan {n} skips {tp} from {epoch.places[tp].floor} to {one.fresh.start} of {one.log.end}")


def _check_follow(epoch: "Epoch", n: int, plan: Any, moves: dict[At, Any]) -> None:
    """Forward a range is skipped; backward a new epoch begins. Each move is followed once: it is answered then."""
    if epoch.rules.on_external_reset != "follow":
        broken("S36", f"plan {n} is a {plan.kind} by {plan.run_id}, and the file says nothing of following")
    targets = {tp: min(moves[tp].offset, one.log.end) for tp, one in plan.partitions.items() if tp in moves}
    back = any(to < epoch.places[tp].floor for tp, to in targets.items())
    if plan.kind != ("reset" if back else "skip"):
        broken("S36", f"plan {n} is a {plan.kind}, the group was moved to {targets}")
    for tp, one in plan.partitions.items():
        to = targets.get(tp, epoch.places[tp].floor)
        if one.fresh.start != to:
            broken("S36", f"plan {n} moves {tp} to {one.fresh.start}; the group says {to}")
