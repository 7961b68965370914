"""The promotion of a shadow: a backfill over the same offsets, with the same handler, whose rows count.

Its lane is `backfill-ID-promoted`, so a second promotion of the same shadow, or one that was killed, finds that lane.
The offsets are those in the genesis of the shadow, and are not chosen anew. What `ackline diff` has shown holds for the
promotion only if it does the same: so it is refused if code or settings have changed since the shadow ran, if an
operator has skipped a part of it, and if a topic is not the one that it has read.
"""

from dataclasses import replace
from typing import Any

from ackline.backfill.choose import Choice, acked_before_of, copies_of_chosen, gone_of, looks_at_rows
from ackline.backfill.form import BackfillRequest
from ackline.backfill.run import Backfill, find_backfill, genesis_of, readable_logs
from ackline.errors import ConfigError, TopicChanged, TransientError
from ackline.forms.arguments import OPTIONS, BackfillArguments, id_of, lane_of
from ackline.lane.adapters import Adapters
from ackline.lane.code import DIRTY
from ackline.lane.ways_out import run, start_over
from ackline.ledger.account import Chosen, chosen_of
from ackline.ledger.turns import TurnKind
from ackline.outputs.publish import lacks_rows
from ackline.pipeline.pipeline import Pipeline, TurnSettings
from ackline.stored import decode, encode
from ackline.tables.store import LedgerStore

DECIDING = frozenset(
    {
        *("handler", "streams", "filter", "decode", "steps", "outputs", "tombstones", "guarantee", "order", "tracking"),
        *("record_timeout", "retry"),
    }
)
"""The settings that decide what becomes of a record, or which rows it gets."""
_KEY = "--promote"


def promoted_arguments(store: LedgerStore, request: BackfillRequest) -> BackfillArguments:
    """Returns the arguments of the promotion that is requested: those of the shadow, to count.

    Raises ConfigError for arguments beside it, for a lane that does not exist, and for one that is no shadow.
    """
    assert request.promotes is not None
    name, shadow_id, blank = store.pipeline, id_of(request.promotes), BackfillArguments()
    given = [option for field, option in OPTIONS.items() if getattr(request.arguments, field) != getattr(blank, field)]
    if given:
        raise ConfigError(f"{_KEY} takes what the shadow has: leave out {', '.join(given)}", key=given[0])
    shadow = find_backfill(store.other_lane(request.promotes))
    if shadow is None:
        raise ConfigError(
            f"{_KEY}: {name} has no backfill {shadow_id}; `ackline backfill {name} --list` lists them", key=_KEY
        )
    if not shadow.arguments.shadow:
        raise ConfigError(f"{_KEY}: backfill {shadow_id} of {name} is no shadow: its rows count already", key=_KEY)
    return replace(shadow.arguments, shadow=False, promotes=shadow_id)


def promoted_choice(adapters: Adapters, arguments: BackfillArguments, of_shadow: Pipeline) -> Choice:
    """Returns the offsets of the shadow, for the lane that promotes it; `of_shadow` are the settings that the shadow
    would run by now.

    Raises ConfigError if the promotion would not do what the shadow has done, and TransientError if a partition has no
    leader.
    """
    assert arguments.promotes is not None
    store = adapters.store.other_lane(lane_of(arguments.promotes))
    shadow = find_backfill(store)
    assert shadow is not None
    opened = replace(adapters, store=store, pipeline=of_shadow)
    _check_settled(opened, shadow)
    genesis = genesis_of(store, shadow.newest.turn.epoch)
    partitions = {tp: chosen_of(row.ranges or (), row.state) for tp, row in sorted(genesis.partitions.items())}
    try:
        logs = readable_logs(opened, shadow.newest.partitions, {tp: of.ranges for tp, of in partitions.items()})
    except TopicChanged as error:
        raise _refused(shadow, f"the shadow has read another log: {error}") from error
    if away := sorted(map(str, partitions.keys() - logs.keys())):
        raise TransientError(f"{', '.join(away)} has no leader; the same step may succeed later")
    notes = _check_same_doing(opened, shadow)
    topic_ids = {tp.topic: row.known_topic_id for tp, row in genesis.partitions.items()}
    copies = copies_of_chosen(adapters, partitions, topic_ids, logs)
    partitions |= {tp: Chosen((), partitions[tp].every) for tp in copies}  # read one by one, as in another backfill
    gone = list(gone_of({tp: of.every for tp, of in partitions.items()}, {}, logs, copies))
    replaced, related = looks_at_rows(adapters, partitions, topic_ids, gone)
    for table, of_table in related().items():
        tp, offsets = next(iter(of_table.items()))
        what = f"rows of the output table {table} are of {tp}@{offsets[0]}, too, which the shadow has not handled"
        raise _refused(shadow, f"{what}; choose these together, with `--with-related`")
    said = f"It promotes {store.lane}: the same offsets with the same handler, and their rows count."
    return Choice(
        partitions,
        topic_ids,
        logs,
        gone,
        {},
        acked_before_of(adapters, partitions, topic_ids),
        replaced,
        related,
        {},
        copies,
        (said, *notes),
    )


def _refused(shadow: Backfill, why: str) -> ConfigError:
    shadow_id = id_of(shadow.newest.turn.lane)
    return ConfigError(
        f"{_KEY}: {why}. So the promotion of backfill {shadow_id} would not do what `ackline diff` has shown; begin "
        f"another shadow of these offsets under another id. Nothing was stored",
        key=_KEY,
    )


def _check_settled(opened: Adapters, shadow: Backfill) -> None:
    """Raises ConfigError unless each offset of the shadow has ended, and all its rows can be compared."""
    store = opened.store
    is_open = store.open_plan(shadow.newest) is not None
    if is_open or not shadow.account.settled or lacks_rows(opened, shadow.newest):
        left = sum(shadow.account.pending.values())
        raise ConfigError(
            f"{_KEY}: backfill {id_of(store.lane)} is not settled ({left:,} offsets are pending), so not all of "
            f"what it makes can be compared; go on with `{run(store)}`, and promote it then. Nothing was stored",
            key=_KEY,
        )
    turn = shadow.newest.turn
    if any(store.given_up(turn._replace(n=n)) for n in range(1, turn.n + 1)):
        raise _refused(shadow, "rows of the shadow were given up, so the diff has not shown them")


def check_goes_on(adapters: Adapters, promotion: Backfill, of_shadow: Pipeline) -> None:
    """Raises ConfigError if a promotion that has begun and is not settled would go on otherwise than its shadow has
    run; `of_shadow` are the settings that the shadow would run by now."""
    assert promotion.arguments.promotes is not None
    store = adapters.store.other_lane(lane_of(promotion.arguments.promotes))
    shadow = find_backfill(store)
    if shadow is None or shadow.genesis.settled_at > promotion.genesis.settled_at:
        return  # the lane that it promotes is gone, or has begun anew since: there is nothing to compare with
    why = _what_differs(replace(adapters, store=store, pipeline=of_shadow), shadow)
    if why is not None:
        raise ConfigError(
            f"{_KEY}: {why}. So the rest of this promotion would not do what `ackline diff` has shown. Go back to what "
            f"the shadow ran with, or {start_over(adapters.store)} and begin another shadow of these offsets",
            key=_KEY,
        )


def _what_differs(opened: Adapters, shadow: Backfill) -> str | None:
    """Returns why the promotion would do something else than the shadow has done; None if nothing is known."""
    turns = opened.store.turns_of_epoch(shadow.newest.turn.epoch)
    if any(turn.kind == TurnKind.SKIP for turn in turns):
        return "an operator has skipped offsets of the shadow, and no handler has seen them"
    runs, running = [turn for turn in turns if turn.kind == TurnKind.RUN], opened.code()
    now = decode(encode(opened.pipeline.settings()), dict[str, Any])
    changed = {key for turn in runs for key in DECIDING if turn.settings.get(key) != now.get(key)}
    # A turn whose plan is gone has no settings, so each key differs.
    if changed or any(TurnSettings(turn.settings).isolation != TurnSettings(now).isolation for turn in runs):
        changed = changed or {"kafka.isolation"}
        return f"{', '.join(sorted(changed))} of the pipeline file changed since the shadow ran"
    others = sorted({turn.code for turn in runs if turn.code and running and turn.code != running})
    if others:
        return f"the shadow ran with the code {', '.join(others)}, and this is {running}"
    return None


def _check_same_doing(opened: Adapters, shadow: Backfill) -> list[str]:
    """Returns what can't be checked, as sentences. Raises ConfigError if the promotion would do something else than the
    shadow has done."""
    if (why := _what_differs(opened, shadow)) is not None:
        raise _refused(shadow, why)
    turns, running = opened.store.turns_of_epoch(shadow.newest.turn.epoch), opened.code()
    codes = {turn.code for turn in turns if turn.kind == TurnKind.RUN}
    if any(not code or code.endswith(DIRTY) for code in (*codes, running)):
        known = "its code has no name, or changes that are not committed"
        return [f"Whether the handler is as it was in the shadow is not known: {known}."]
    return []


def check_is_promoted(store: LedgerStore, request: BackfillRequest, promotion: Backfill) -> None:
    """Raises ConfigError if the settled lane of a promotion has not done what the shadow has: it was cancelled, or the
    shadow has a newer epoch. Without it an operator would read that it is settled."""
    if request.promotes is None or not promotion.account.settled:
        return
    shadow, epoch = find_backfill(store.other_lane(request.promotes)), promotion.newest.turn.epoch
    if any(turn.kind == TurnKind.SKIP for turn in store.turns_of_epoch(epoch)):
        why = "was cancelled: the records that it has skipped keep their older rows"
    elif shadow is not None and shadow.genesis.settled_at > promotion.genesis.settled_at:
        why = "is of an earlier epoch of the shadow"
    else:
        return
    raise ConfigError(
        f"{_KEY}: backfill {id_of(store.lane)} of {store.pipeline} {why}. Add `--epoch {epoch + 1}` to promote the "
        f"shadow again. Nothing was stored",
        key=_KEY,
    )


def promotions(found: list[Backfill]) -> dict[str, str]:
    """Returns the ids of shadows that were promoted, each with the id of its promotion."""
    return {
        each.arguments.promotes: id_of(each.genesis.turn.lane) for each in found if each.arguments.promotes is not None
    }
