"""Renders the pages as HTML. Every text that comes from outside goes through `html.escape`."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from typing import Any
from urllib.parse import quote

from ackline.audit.queries import AuditFilter, displayed_values
from ackline.ledger import PendingKind
from ackline.turns import Settlement
from ackline.ui.lanes import MOST_ROWS, Lane, Turn

STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }
table { border-collapse: collapse; margin: .5rem 0 1.5rem }
th, td { padding: .2rem .7rem; text-align: left; border-bottom: 1px solid #ddd; white-space: nowrap }
td.number { text-align: right; font-variant-numeric: tabular-nums }
form { margin: .5rem 0 } input { width: 9rem; margin-right: 1rem }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #1c1c1c } th, td { border-color: #444 } a { color: #8bf }
}
"""
KINDS = tuple(PendingKind)
PENDING_COLUMNS = tuple(f"pending: {kind}" for kind in KINDS)
PARTITION_COLUMNS = ["topic", "partition", "floor", "complete to", *PENDING_COLUMNS, "next due"]
AUDIT_COLUMNS = [
    *("topic", "partition", "offset", "end_offset", "attempt", "outcome", "error_class", "error_message", "turn"),
    *("epoch", "run_id", "handled_at"),
]


def index(lanes: Sequence[Lane]) -> str:
    """Returns the page of all pipelines, each with a table of its partitions."""
    parts = [
        f'<h2><a href="pipelines/{quote(lane.name, safe="")}">{escape(lane.name)}</a></h2>{_partitions(lane.newest)}'
        for lane in lanes
    ]
    return _page("Pipelines", "".join(parts) or "<p>You may read no DAG of a pipeline.</p>")


def pipeline(lane: Lane, turns: Sequence[Turn], criteria: AuditFilter, rows: Sequence[dict[str, Any]]) -> str:
    """Returns the page of one pipeline, with the rows of the audit table that match `criteria`."""
    body = (
        f'<p><a href="../">All pipelines</a></p>{_partitions(lane.newest)}'
        f"<h2>Last turns</h2>{_turns(turns)}<h2>What happened to a record</h2>{_form(criteria)}{_audit(criteria, rows)}"
    )
    return _page(lane.name, body)


def problem(text: str) -> str:
    """Returns the page that shows an error."""
    return _page("Ackline", f"<p>{escape(text)}</p>")


def _page(title: str, body: str) -> str:
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)} · Ackline</title>'
        f"<style>{STYLE}</style></head><body><h1>{escape(title)}</h1>{body}</body></html>"
    )


def _partitions(newest: Settlement | None) -> str:
    if newest is None:
        return "<p>The pipeline has not run yet.</p>"
    rows = []
    for tp, settled in sorted(newest.partitions.items()):
        state = settled.state
        pending = state.pending_by_kind()
        rows.append(
            [tp.topic, tp.partition, state.floor, state.complete_to, *(pending[kind] for kind in KINDS), state.next_due]
        )
    position = f"<p>After turn {newest.turn.n} of epoch {newest.turn.epoch}, settled {_cell(newest.settled_at)}.</p>"
    return position + _table(PARTITION_COLUMNS, rows)


def _turns(turns: Sequence[Turn]) -> str:
    outcomes = sorted({word for turn in turns for word in turn.outcomes})
    rows = [
        [turn.n, turn.kind, turn.settled_at, turn.run_id, *(turn.outcomes[word] for word in outcomes), turn.reason]
        for turn in turns
    ]
    return _table(["turn", "kind", "settled", "run", *outcomes, ""], rows)


def _form(criteria: AuditFilter) -> str:
    offset = criteria.offsets.start if criteria.offsets else None
    number = 'inputmode="numeric" required'
    fields = (("topic", criteria.topic, ""), ("partition", criteria.partition, number), ("offset", offset, number))
    inputs = "".join(
        f'<label>{name} <input name="{name}" value="{_cell(value)}" {more}></label>' for name, value, more in fields
    )
    return f'<form method="get">{inputs}<button>Show</button></form>'


def _audit(criteria: AuditFilter, rows: Sequence[dict[str, Any]]) -> str:
    if criteria.offsets is None and not rows:
        return "" if criteria.partition is None and criteria.topic is None else "<p>Enter an offset.</p>"
    if not rows:
        return "<p>No settled turn has a row for this offset.</p>"
    notice = f"<p>The first {MOST_ROWS} rows.</p>" if len(rows) == MOST_ROWS else ""
    return notice + _table(AUDIT_COLUMNS, [displayed_values(row, AUDIT_COLUMNS) for row in rows])


def _table(names: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join("<tr>" + "".join(_td(value) for value in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _td(value: object) -> str:
    return f"<td{' class=number' if isinstance(value, int) else ''}>{_cell(value)}</td>"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S} UTC"
    return escape(str(value))
