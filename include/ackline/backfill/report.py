"""What the command `ackline backfill` and the DAG `backfill__NAME` show of a lane: JSON for a program, and text."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from ackline.backfill.choose import Choice
from ackline.backfill.run import Backfill
from ackline.ledger.account import UNREAD, Account
from ackline.ledger.offsets import OffsetRange, TopicPartition, count_offsets
from ackline.pipeline.arguments import id_of

MOST_RANGES = 20
"""How many ranges a person is shown."""


def account_json(lane: str, epoch: int, account: Account) -> dict[str, Any]:
    """Returns the account of a lane: what was asked, and what has become of each offset."""
    return {
        "id": id_of(lane),
        "lane": lane,
        "epoch": epoch,
        "settled": account.settled,
        "asked": {"offsets": account.offsets, "ranges": ranges_json(account.asked)},
        "outcomes": dict(account.outcomes),
        "gaps": account.gaps,
        "pending": {str(kind): number for kind, number in account.pending.items()},
        "next_due": account.next_due.isoformat() if account.next_due else None,
    }


def choice_json(choice: Choice) -> dict[str, Any]:
    """Returns what a dry run adds: what is gone, where a time has no end yet, what earlier backfills have acked."""
    return {
        "gone": [
            {**range_json(gone.tp, gone.offsets), "why": gone.why}
            for gone in sorted(choice.gone, key=lambda gone: (gone.tp, gone.offsets))
        ],
        "open_end": [
            {"topic": tp.topic, "partition": tp.partition, "end": end} for tp, end in sorted(choice.open_ends.items())
        ],
        "acked_before": choice.acked_before,
    }


def backfill_json(backfill: Backfill) -> dict[str, Any]:
    """Returns a lane as `--list` prints it."""
    turn = backfill.genesis.turn
    return {
        **account_json(turn.lane, turn.epoch, backfill.account),
        "began_at": backfill.genesis.settled_at.isoformat(),
        "actor": backfill.genesis.actor,
        "reason": backfill.genesis.reason,
        "arguments": backfill.arguments.shown(),
    }


def ranges_json(asked: Mapping[TopicPartition, Iterable[OffsetRange]]) -> list[dict[str, Any]]:
    """Returns ranges as JSON, in the order of partitions and offsets."""
    return [range_json(tp, part) for tp, ranges in sorted(asked.items()) for part in ranges]


def range_json(tp: TopicPartition, part: OffsetRange) -> dict[str, Any]:
    """Returns a range as JSON; its end is exclusive."""
    return {"topic": tp.topic, "partition": tp.partition, "start": part.start, "end": part.end}


def choice_text(name: str, backfill_id: str, choice: Choice, confirm_above: int) -> str:
    """Returns what a new backfill would do, for a person."""
    if not choice.partitions:
        return "\n".join([f"Nothing matches: backfill {backfill_id} of {name} would read no offset.", *_gone(choice)])
    partitions = len(choice.partitions)
    where = f"{partitions:,} partition{'s' * (partitions != 1)}"
    lines = [f"Backfill {backfill_id} of {name} would read {choice.offsets:,} offsets of {where} again:"]
    lines += _ranges({tp: chosen.every for tp, chosen in choice.partitions.items()})
    for tp, end in sorted(choice.open_ends.items()):
        lines.append(f"{tp} has no record at or after --to yet: it is read up to its log end, {end}.")
    lines += _gone(choice)
    if choice.acked_before:
        lines.append(f"{choice.acked_before:,} of them were acked by an earlier backfill.")
    if choice.offsets > confirm_above:
        lines.append(f"This is more than `backfill.confirm_above` ({confirm_above:,}).")
    return "\n".join(lines)


def _gone(choice: Choice) -> list[str]:
    by_reason: dict[str, list[OffsetRange]] = {}
    for gone in choice.gone:
        by_reason.setdefault(f"{gone.tp}, {gone.why}", []).append(gone.offsets)
    return [
        f"{count_offsets(ranges):,} offsets can't be read any more ({reason}): {_joined(ranges)}."
        for reason, ranges in sorted(by_reason.items())
    ]


def _joined(ranges: list[OffsetRange]) -> str:
    more = f" and {len(ranges) - MOST_RANGES:,} more ranges" if len(ranges) > MOST_RANGES else ""
    return ", ".join(map(str, ranges[:MOST_RANGES])) + more


def _ranges(asked: Mapping[TopicPartition, Iterable[OffsetRange]]) -> list[str]:
    lines = [f"  {tp} {part}" for tp, ranges in sorted(asked.items()) for part in ranges]
    more = [f"  and {len(lines) - MOST_RANGES:,} more ranges"] if len(lines) > MOST_RANGES else []
    return lines[:MOST_RANGES] + more


def account_text(name: str, lane: str, account: Account, now: datetime) -> str:
    """Returns the account of a lane for a person, and when to come back if it is not settled."""
    outcomes = [f"{number:,} {word}" for word, number in sorted(account.outcomes.items())]
    gaps = [f"{account.gaps:,} gaps"] if account.gaps else []
    words = {UNREAD: "unread", "retry": "waiting for a retry", "dead_letter": "waiting for a dead letter"}
    pending = [f"{number:,} {words.get(kind, kind)}" for kind, number in account.pending.items() if number]
    what = ", ".join([*outcomes, *gaps, *pending]) or "nothing"
    text = f"Backfill {id_of(lane)} of {name}: {account.offsets:,} offsets asked = {what}."
    if account.settled:
        return f"{text} It is settled."
    due = account.next_due
    when = f"at {due.isoformat(timespec='seconds')}" if due is not None and due > now else "now"
    return f"{text} Go on {when} with `ackline backfill {name} --id {id_of(lane)} --yes`."
