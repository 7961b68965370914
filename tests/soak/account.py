"""The end of a soak: the independent checker judges each lane, and each record that was written has its outcome."""

from pathlib import Path

from ackline.verify.check import Report, Sources, check
from ackline.verify.rows import TERMINAL
from tests.soak.fleet import RETRY, Fleet, Member


def violations(fleet: Fleet, delivered: dict[str, int], backfills: list[tuple[str, str]]) -> list[str]:
    """Returns what does not hold, a sentence each. `delivered` counts the records of each topic that the broker has
    acknowledged."""
    found = []
    for member in fleet.members:
        report = _check(fleet, member, "live")
        found += [f"{member.name}: {sentence}" for sentence in [*report.violations, *report.not_judged]]
        found += _balance(fleet, member, report, delivered.get(member.topic, 0))
        staging = Path(fleet.audit) / member.name / ".staging"
        if staging.exists() and (left := [path.name for path in staging.iterdir() if path.is_dir()]):
            found.append(f"{member.name}: {len(left)} staging folders are left, among them {left[0]}")
    members = fleet.by_name()
    for name, lane in backfills:
        report = _check(fleet, members[name], f"backfill-{lane}")
        found += [f"{name} backfill {lane}: {sentence}" for sentence in report.violations]
    return found


def _check(fleet: Fleet, member: Member, lane: str) -> Report:
    journal = fleet.folder / "journal"
    if member.kind == "once":
        written = Path(f"{fleet.folder}/journals/calls")
        lines = written.read_text().splitlines() if written.exists() else []
        journal.write_text("".join(f"{line}\n" for line in lines if line.split("\t")[0] == member.topic))
    sources = Sources(
        fleet.bootstrap,
        fleet.audit,
        member.name,
        member.group,
        [member.topic],
        dead_letter_topic=member.dead_letter_topic,
        journal=str(journal) if member.kind == "once" else None,
        lane=lane,
    )
    return check(sources, max_retries=int(str(RETRY["max_retries"])), settled=True)


def _balance(fleet: Fleet, member: Member, report: Report, delivered: int) -> list[str]:
    """Compares what was written with the outcomes. A compacted log has lost records that nobody read, of which there is
    no row, and the producer is idempotent, so each other log is as long as what was delivered."""
    ends = [fleet.bounds(member, partition)[1] for partition in range(member.partitions)]
    ended = sum(report.totals[word] for word in TERMINAL)
    wrong = []
    if sum(ends) != delivered:
        wrong.append(f"{member.name}: {delivered} records were delivered, and the log has {sum(ends)}")
    if ended != delivered and member.kind != "compacted":
        counts = {word: report.totals[word] for word in TERMINAL}
        wrong.append(f"{member.name}: {delivered} records were delivered, and {ended} have an outcome: {counts}")
    return wrong
