"""Answer for records in flight, by their tokens: what `ackline ack`, `fail` and `renew` do."""

from collections.abc import Sequence

from ackline.errors import ConfigError
from ackline.in_flight.ack_topic import checked_topic
from ackline.lane.adapters import Parts
from ackline.ledger.tokens import Token


def send_answer(parts: Parts, tokens: Sequence[Token], value: str) -> str:
    """Sends the same answer for each token. Returns the ack topic that has them now.

    The next run applies them. Whether an attempt is still in flight is not checked: a token may come before its outcome
    is stored. Raises ConfigError if the pipeline has no ack topic, if that does not exist or is not the one that the
    lane reads, or if no key of the connection has signed a token; and what sending raises.
    """
    topic = parts.pipeline.ack_topic
    if topic is None:
        raise ConfigError(
            f"{parts.pipeline.name} has no `ack_topic` in its file any more, so no answer would be read; add the key",
            key="ack_topic",
        )
    for token in tokens:
        _check_signed(parts, token)
    _check_read(parts, topic)
    checked_topic(parts, topic)
    parts.send_answers(topic, [(token.text, value) for token in tokens])
    return topic


def _check_read(parts: Parts, topic: str) -> None:
    newest = parts.store.newest()
    plan = parts.store.open_plan(newest) if newest is not None else None
    position = newest.answers.position if newest is not None and newest.answers is not None else None
    if plan is not None and plan.ack_position is not None:
        position = plan.ack_position  # the newest settlement may be of the topic before
    if position is not None and position.topic != topic:
        raise ConfigError(
            f"{parts.pipeline.name} reads its answers in {position.topic}, but `ack_topic` in its file is {topic} now: "
            f"put {position.topic} back until nothing is in flight, and answer again. Nothing was sent",
            key="ack_topic",
        )


def _check_signed(parts: Parts, token: Token) -> None:
    newest = parts.store.newest()
    settled = newest.partitions.get(token.tp) if newest is not None else None
    if settled is None or not token.is_signed(parts.token_keys or (), parts.store.ledger_id(), settled.topic_id):
        raise ConfigError(
            f"the token is not one of {parts.pipeline.name} as it is here: its key was removed from the connection, "
            f"its topic was created again, or it is of another ledger (ACKLINE_AUDIT). Nothing was sent; `ackline "
            f"status {parts.pipeline.name}` shows what is in flight",
            key="TOKEN",
        )
