"""`ackline adopt-ledger`: an operator's answer to a group that another ledger of the pipeline has committed.

The ledgers of a pipeline share nothing, so a run stops at a commit of the other one. What ACKLINE_AUDIT holds decides:
- No ledger: the other one is lost. A new ledger begins at the group's commits, whatever `start` is; at the log start
  where there is no commit.
- A ledger, and commits of another one: a wrong folder was in use meanwhile. A skip goes on with this ledger's floors
  and pending records, and acknowledges the other one's commits. At most once it skips to them, because the other ledger
  may have handed out what is below.
- An older copy of the ledger that has committed: the same, after this one has got an id of its own (lane/commit.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from ackline.actions.actions import PreparedAction, commit_or_reason, open_turn_error, perform_action, prepare_action
from ackline.errors import ConfigError, FatalError, GroupMoved, NewerCommit
from ackline.lane.adapters import Adapters
from ackline.lane.commit import CommitCheck, commit_metadata_of
from ackline.lane.genesis import genesis_partitions, genesis_plan
from ackline.lane.log_checks import KafkaView, observe_kafka
from ackline.lane.plans import Targets, check_settings_unchanged
from ackline.ledger.commit_rule import CommitMetadata, Committed, is_of_ledger, is_of_pipeline
from ackline.ledger.offsets import TopicPartition
from ackline.ledger.pending import NEVER, PendingKind
from ackline.ledger.turns import Plan, SettledPartition, Settlement, TurnKind
from ackline.steps.plan import store_first_genesis, take_turn
from ackline.steps.settle import settle_turn

NOTHING = "the group holds no commit of another ledger of this pipeline: there is nothing to adopt"


@dataclass(frozen=True, slots=True)
class OutstandingTokens:
    """The records in flight whose tokens count no more, because tokens are signed for the ledger's id.

    `in_flight` is None if the ledger that has handed them out is lost: this one does not hold its records. A record
    with a deadline times out and is tried again, under a new token. One of those `without_timeout` waits for ever.
    """

    in_flight: int | None
    without_timeout: int


@dataclass(frozen=True, slots=True)
class Adoption:
    """What adopting changes. `not_committed` is why the group was not committed; None before it is carried out."""

    ledgers: tuple[str, ...]
    """The other ledgers that have committed the group; empty if none has."""
    begins: Mapping[TopicPartition, SettledPartition]
    """The partitions that join the ledger, each at its start."""
    action: PreparedAction | None = None
    """The skip of partitions that the ledger has already."""
    not_committed: str | None = None
    older_copy: bool = False
    """Whether a newer copy of the same ledger has committed the group. This copy then gets a new id."""
    outstanding: OutstandingTokens = OutstandingTokens(0, 0)
    rescue_topic: str | None = None
    """If a new ledger begins: where the copies are of what the lost one may have had pending below the commits. None
    without `rescue`."""


def prepare_adoption(adapters: Adapters, reason: str) -> Adoption:
    """Returns what adopting would change now; stores nothing. Raises ConfigError if no commit is to be adopted,
    GroupBusy if the group has members, FatalError while a turn is open."""
    adapters.group.check_no_members()
    newest = adapters.store.newest()
    if newest is not None and (open_plan := adapters.store.open_plan(newest)) is not None:
        raise open_turn_error("adopt the ledger", open_plan)
    if newest is not None:
        check_settings_unchanged(adapters, newest)  # partitions that join begin a turn, which runs by the file of today
    view = observe_kafka(adapters, newest)
    joining = _joining(adapters, newest, view)
    if newest is None:
        if not joining:
            raise ConfigError(f"{adapters.pipeline.name}: no subscribed topic exists, so no ledger can begin")
        lost = OutstandingTokens(None if adapters.pipeline.ack_topic is not None else 0, 0)
        rescue_topic = adapters.pipeline.rescue_topic
        return Adoption(_ledgers(adapters, view.committed), joining, outstanding=lost, rescue_topic=rescue_topic)
    commits = _commits_of_others(adapters, newest, view.committed)
    if not commits and not joining:
        raise ConfigError(f"{adapters.pipeline.name}: {NOTHING}")
    others = {tp: row.committed for tp, row in joining.items() if row.committed is not None} | commits
    action = None
    if commits:
        action = prepare_action(adapters, TurnKind.SKIP, partial(_targets, adapters), reason, adopts_ledger=True)
    older_copy = _is_older_copy(adapters, commits)
    # Only a copy gets another id. A ledger that returns over commits of another one keeps its id and its tokens.
    tokens = _outstanding(newest) if older_copy else OutstandingTokens(0, 0)
    return Adoption(_ledgers(adapters, others), joining, action, older_copy=older_copy, outstanding=tokens)


def adopt_ledger(adapters: Adapters, reason: str) -> Adoption:
    """Adopts the ledger that ACKLINE_AUDIT names for the group, and commits its floors.

    Each write is a fenced commit of its own, so after a crash the rest is done by the same command. Raises what
    `prepare_adoption` raises, and has stored nothing then.
    """
    adoption = prepare_adoption(adapters, reason)
    newest = adapters.store.newest()
    if newest is None:
        store_first_genesis(adapters, dict(adoption.begins), reason)
    elif adoption.begins:
        _join(adapters)
    if adoption.action is None:
        return replace(adoption, not_committed=commit_or_reason(adapters))
    done = perform_action(adapters, TurnKind.SKIP, partial(_targets, adapters), reason, adopts_ledger=True)
    return replace(adoption, action=done, not_committed=done.not_committed)


def _joining(adapters: Adapters, newest: Settlement | None, view: KafkaView) -> dict[TopicPartition, SettledPartition]:
    """Returns the partitions that join the ledger: in one that has begun, those that another one has committed."""
    joining = genesis_partitions(adapters, newest, view, adopts_ledger=True)
    if newest is None:
        return joining
    return {tp: row for tp, row in joining.items() if is_of_pipeline(row.committed, adapters.pipeline.name)}


def _join(adapters: Adapters) -> None:
    """Takes and settles the turn in which partitions join. If another process is quicker, what joins is found anew."""

    def begin() -> None:
        raise FatalError(
            f"{adapters.pipeline.name}: the tables of its lane are gone. Nothing was stored. Look at it again"
        )

    def refuse(open_plan: Plan, _: Settlement) -> bool:
        raise open_turn_error("adopt the ledger", open_plan)

    def make(newest: Settlement) -> Plan | None:
        check_settings_unchanged(adapters, newest)
        joining = _joining(adapters, newest, observe_kafka(adapters, newest))
        return genesis_plan(adapters, newest, joining) if joining else None

    kinds = (TurnKind.GENESIS,)
    taken = take_turn(adapters, "taking the turn of partitions that join", kinds, begin=begin, end=refuse, make=make)
    if taken.plan is not None:  # None if they have joined meanwhile
        settle_turn(adapters, taken.plan, taken.before)


def _outstanding(newest: Settlement) -> OutstandingTokens:
    in_flight = [settled.state.pending.of_kind(PendingKind.IN_FLIGHT) for settled in newest.partitions.values()]
    lasting = sum(int((runs.ends - runs.starts)[runs.dues == NEVER].sum()) for runs in in_flight)
    return OutstandingTokens(sum(runs.offsets for runs in in_flight), lasting)


def _commits_of_others(
    adapters: Adapters, newest: Settlement, committed: Mapping[TopicPartition, Committed]
) -> dict[TopicPartition, Committed]:
    """Returns the commits of subscribed partitions that stop a run of this ledger: of another ledger, or newer."""
    check, others = CommitCheck(adapters, commit_metadata_of(adapters, newest)), {}
    lane = {tp: row for tp, row in newest.partitions.items() if adapters.is_subscribed(tp)}
    for tp in adapters.unchanged_partitions({tp: row.topic_id for tp, row in lane.items()}):
        try:
            check.check(tp, committed.get(tp), lane[tp].acknowledged_foreign_offset)
        except NewerCommit:
            others[tp] = committed[tp]
        except GroupMoved:
            continue  # by another client: `on_external_reset` decides about it
    return others


def _is_older_copy(adapters: Adapters, commits: Mapping[TopicPartition, Committed]) -> bool:
    """Returns whether a newer copy of this ledger has made any of the commits, which are newer or of another ledger."""
    ledger = adapters.store.ledger_id()
    return any(is_of_ledger(committed, adapters.pipeline.name, ledger) for committed in commits.values())


def _targets(adapters: Adapters, newest: Settlement) -> Targets:
    """Returns where each partition goes on: at its floor, at most once at a commit above it."""
    committed = adapters.group.committed(newest.partitions)
    commits = _commits_of_others(adapters, newest, committed)
    floors = {tp: newest.partitions[tp].state.floor for tp in commits}
    if _is_older_copy(adapters, commits):
        # With the new id, each commit under the old one is another ledger's. All of them are acknowledged, those of
        # parked partitions too: otherwise the next run would stop at them, and no run would renew the parked ones.
        ledger, name = adapters.store.ledger_id(), adapters.pipeline.name
        own = {tp: commit for tp, commit in committed.items() if is_of_ledger(commit, name, ledger)}
        unchanged = adapters.unchanged_partitions({tp: newest.partitions[tp].topic_id for tp in own})
        commits |= {tp: own[tp] for tp in unchanged}
        floors |= {tp: newest.partitions[tp].state.floor for tp in commits}
    if not adapters.pipeline.guarantee.claims or not commits:
        return floors
    above = {tp: commit.offset for tp, commit in commits.items() if commit.offset > floors[tp]}
    ends = adapters.cluster.bounds(above)
    return floors | {tp: max(floors[tp], min(offset, ends[tp].end)) for tp, offset in above.items()}


def _ledgers(adapters: Adapters, committed: Mapping[TopicPartition, Committed]) -> tuple[str, ...]:
    of_pipeline = [commit for commit in committed.values() if is_of_pipeline(commit, adapters.pipeline.name)]
    decoded = [CommitMetadata.decode_or_none(commit.metadata) for commit in of_pipeline]
    return tuple(sorted({metadata.ledger for metadata in decoded if metadata is not None}))
