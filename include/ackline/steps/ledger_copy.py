"""The adoption of an older copy of a ledger: the copy gets an id of its own.

Two copies of a ledger that both go on have different turns under the same numbers. Commit metadata names a ledger by
its id, so with one id neither copy could tell the other's commits from its own: each would overwrite them as commits of
an older turn. With a new id, the commits under the old one are another ledger's. If the lost copy comes back, its runs
stop at the commits of this one.
"""

import uuid
from dataclasses import replace

from ackline.commit_rule import is_of_ledger
from ackline.steps.parts import Parts
from ackline.turns import Plan, PlannedPartition, TurnKind


def acknowledging(plan: Plan) -> Plan:
    """Returns the plan of an adoption, in which each row acknowledges the commit that it has found, of whatever
    ledger."""
    rows = {
        tp: replace(row, acknowledged_foreign_offset=row.committed.offset) if row.committed is not None else row
        for tp, row in plan.partitions.items()
    }
    return replace(plan, partitions=rows)


def renew_id_of_copy(parts: Parts, plan: Plan) -> None:
    """Gives the ledger a new id if `plan` adopts it as an older copy; does nothing for any other plan.

    Each process that settles the turn calls this before it stores the settlement. The new id is computed from the plan,
    and replaces the old one only, so a repeat changes nothing. After a crash before the settlement, the next run does
    it again; after the settlement, nothing is left to do.
    """
    ledger = parts.store.ledger_id() if plan.kind is TurnKind.SKIP else ""
    # Only an adoption acknowledges commits of the ledger's own id: any other plan takes them for its own.
    if ledger and any(_acknowledges(parts, row, ledger) for row in plan.partitions.values()):
        new = uuid.uuid5(uuid.NAMESPACE_OID, f"{ledger}/{plan.turn.epoch}/{plan.turn.n}/{plan.run_id}")
        parts.store.replace_ledger_id(ledger, str(new))


def _acknowledges(parts: Parts, row: PlannedPartition, ledger: str) -> bool:
    own = is_of_ledger(row.committed, parts.pipeline.name, ledger)
    return own and row.acknowledged_foreign_offset is not None
