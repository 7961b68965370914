"""What a run tells in the end: one sentence of what was handled, one of what was settled, and why records failed.

The numbers of each sentence add up. They are not the same numbers: a record whose last attempt failed was handled as
failed and settled as dead, a tombstone is settled without a call, and a turn that another run has replayed is settled
without a call of this run.
"""

from collections.abc import Sequence
from itertools import chain

from ackline.errors import AcklineError, counted
from ackline.ledger.offsets import count
from ackline.ledger.outcomes import Outcome
from ackline.ledger.turns import Plan, Settlement, TurnKind
from ackline.steps.run import RunResult
from ackline.tables.store import LedgerStore
from ackline.tables.turn_outcomes import commonest_failures

_BY_CALLS = (Outcome.ACKED, Outcome.FAILED, Outcome.DROPPED, Outcome.IN_FLIGHT)
"""Outcomes that only a handler call gives."""
SHOWN_CLASSES = 3
"""Of how many classes of errors a run shows a message."""


def account_lines(ran: RunResult, newest: Settlement | None) -> list[str]:
    """Returns what a run has handled and settled; `newest` is the lane after it."""
    settled = {word: ran.outcomes[word] for word in Outcome if word.terminal and ran.outcomes[word]}
    line = f"Settled: {counted(sum(settled.values()), 'offset')}"
    line += f" ({_counts(settled)})" if settled else ""
    pending = _pending(newest)
    line += f"; {pending:,} {'is' if pending == 1 else 'are'} pending" if pending else "; nothing is pending"
    lines = [f"Handled: {_handled(ran)}.", *_failed(ran), f"{line}.", *_rescued(newest)]
    return [*lines, *open_transaction_lines(ran.plans[-1:])]


def _rescued(newest: Settlement | None) -> list[str]:
    """Returns how many pending records have a copy, and how many of these hold the floor no more; nothing without."""
    states = [row.state for row in newest.partitions.values()] if newest is not None else []
    copies, released = sum(state.copies.offsets for state in states), sum(count(state.released) for state in states)
    if not copies and not released:
        return []
    freed = f"; {released:,} {'does' if released == 1 else 'do'} not hold the floor" if released else ""
    return [f"Rescued: {counted(copies, 'pending record')} with a copy in the rescue topic{freed}."]


def open_transaction_lines(plans: Sequence[Plan]) -> list[str]:
    """Returns how many offsets open transactions hold back that these plans could not read; nothing without any."""
    held = {
        tp: planned.log for plan in plans for tp, planned in plan.partitions.items() if planned.log.open_transaction
    }
    if not held:
        return []
    tp, log = max(held.items(), key=lambda item: item[1].open_transaction)
    offsets, more = sum(log.open_transaction for log in held.values()), len(held) - 1
    others = f" and {counted(more, 'more partition')}" if more else ""
    name = plans[0].turn.pipeline
    return [
        f"Not readable: {counted(offsets, 'offset')} behind open transactions, in {tp} from {log.end} on{others}; "
        f"`ackline explain {name}` shows since when."
    ]


def _failed(ran: RunResult) -> list[str]:
    """Returns the failures of new records apart from those of retries; nothing if none failed."""
    failed = ran.outcomes[Outcome.FAILED] + ran.outcomes[Outcome.DROPPED]
    if not failed:
        return []
    parts = []
    if ran.new_records:
        share = ran.new_failed / ran.new_records
        parts.append(f"{ran.new_failed:,} of {counted(ran.new_records, 'new record')} ({share:.1%})")
    if others := failed - ran.new_failed:
        # An answer from outside may fail a record in flight too.
        parts.append(counted(others, "retry") if ran.answers is None else f"{others:,} retries and answers")
    return [f"Failures: {', '.join(parts)}."]


def _handled(ran: RunResult) -> str:
    """Returns the handler calls of this run by their outcome, as far as its turns tell of each call what it gave."""
    calls = counted(ran.calls, "handler call")
    tried = {word: ran.outcomes[word] for word in _BY_CALLS if ran.outcomes[word]}
    others, skipped = sum(tried.values()), ran.outcomes[Outcome.SKIPPED]
    by_handler = ran.calls - others
    if ran.answers is None and 0 <= by_handler <= skipped:
        every = tried | ({Outcome.SKIPPED: by_handler} if by_handler else {})
        without = skipped - by_handler
        more = f"; {without:,} skipped without a call" if without else ""
        return calls + (f" ({_counts(every)})" if every else "") + more
    if not ran.calls and others:
        return f"{calls}; another run had handled what was settled"
    return calls


def _pending(newest: Settlement | None) -> int:
    every = newest.partitions.values() if newest is not None else ()
    return sum(sum(settled.state.pending_by_kind().values()) for settled in every)


def _counts(numbers: dict[Outcome, int]) -> str:
    return ", ".join(f"{number:,} {word}" for word, number in sorted(numbers.items()))


def failure_lines(ran: RunResult, store: LedgerStore, name: str, run_id: str) -> list[str]:
    """Returns the commonest errors of a run with a message each, and the command that shows each failed attempt.

    Returns nothing where the rows can't be read: the run has ended well, and its report must not fail it.
    """
    turns = [plan.turn for plan in ran.plans]
    if not ran.outcomes[Outcome.FAILED] and not ran.outcomes[Outcome.DROPPED]:
        return []
    try:
        turns = [turn for turn in turns if store.settlement(turn).kind is not TurnKind.VOID]
        classes = commonest_failures(chain.from_iterable(map(store.failed_classes_of, turns)), 10**9)
    except AcklineError:
        return []
    if not classes:
        return []
    lines = ["Failed:"]
    for error_class, place, number, message in classes[:SHOWN_CLASSES]:
        at = f" at {place}" if place else ""
        lines.append(f"  {number:,} {error_class or 'without a class'}{at}" + (f": {message}" if message else ""))
    if more := classes[SHOWN_CLASSES:]:
        lines.append(f"  {sum(each.number for each in more):,} of other classes ({len(more):,})")
    last = turns[-1]
    # Turns in a row are those of this run, but for one that another run has replayed.
    where = (
        f"--turn {last.n}" + (f" --epoch {last.epoch}" if last.epoch else "") if len(turns) == 1 else f"--run {run_id}"
    )
    word = "failed" if ran.outcomes[Outcome.FAILED] else "dropped"
    lines.append(f"`ackline audit {name} --outcome {word} {where}` shows each of them.")
    return lines
