"""The void turns of a lane: none of their rows counts."""

from ackline.audit.table import AuditTable
from ackline.turns import TurnKind


def void_turns(folder: str, epoch: int | None = None) -> set[tuple[int, int]]:
    """Returns epoch and number of each void turn of a lane, whose tables are in `folder`; those of one epoch if it is
    given. One read, however many turns there are. Raises FatalError if the table can't be read."""
    where: dict[str, str | int] = {"kind": TurnKind.VOID.value}
    if epoch is not None:
        where["epoch"] = epoch
    rows = AuditTable(folder, "settlements").read(where, ["epoch", "turn"])
    return set(zip(rows["epoch"].to_pylist(), rows["turn"].to_pylist(), strict=True))
