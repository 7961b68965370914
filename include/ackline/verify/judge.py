"""Applies all rules to an evidence."""

from collections.abc import Callable

from ackline.verify import (
    judge_answers,
    judge_attempts,
    judge_backfill,
    judge_floors,
    judge_logs,
    judge_outcomes,
    judge_turns,
)
from ackline.verify.evidence import Evidence
from ackline.verify.findings import Findings
from ackline.verify.judge_calls import judge_calls
from ackline.verify.judge_commits import judge_commits
from ackline.verify.judge_dead_letters import judge_dead_letters
from ackline.verify.judge_outputs import judge_outputs
from ackline.verify.judge_settled import judge_settled
from ackline.verify.lane_history import LaneHistory, PartitionHistory
from ackline.verify.report import Report, make_report

LANE_RULES: tuple[Callable[[LaneHistory, Findings], None], ...] = (
    judge_turns.check_turns_are_stored_once,
    judge_turns.check_turns_follow_each_other,
    judge_turns.check_settlements_cover_every_partition,
    judge_turns.check_waived_turns_are_void,
    judge_turns.check_void_turns_have_a_reason,
    judge_outcomes.check_no_epoch_leaves_records_over,
)
PARTITION_RULES: tuple[Callable[[PartitionHistory, Findings], None], ...] = (
    judge_outcomes.check_rows_are_well_formed,
    judge_floors.check_floor_is_lowest_pending,
    judge_floors.check_floor_never_falls,
    judge_floors.check_complete_to_never_falls,
    judge_floors.check_void_turns_change_nothing,
    judge_turns.check_nothing_is_passed_over,
    judge_turns.check_first_attempts_are_planned,
    judge_outcomes.check_no_outcome_is_stored_twice,
    judge_outcomes.check_nothing_is_attempted_after_its_end,
    judge_answers.check_answers_end_attempts_in_flight,
    judge_answers.check_an_attempt_is_ended_once,
    judge_answers.check_no_ack_acks_a_skipped_tree,
    judge_attempts.check_attempts_are_consecutive,
    judge_attempts.check_attempts_are_in_later_turns,
    judge_attempts.check_retries_were_pending_and_due,
    judge_outcomes.check_epoch_has_start_and_state,
    judge_outcomes.check_outcomes_are_inside_the_epoch,
    judge_outcomes.check_each_record_is_settled_or_pending,
    judge_logs.check_complete_to_is_in_log,
    judge_outcomes.check_nothing_is_attempted_in_later_turns,
    judge_floors.check_floor_passes_only_settled_offsets,
    judge_floors.check_complete_to_passes_only_read_offsets,
    judge_floors.check_pending_offsets_after_each_turn,
    judge_outcomes.check_counts_match_rows,
    judge_outcomes.check_counts_match_records,
    judge_turns.check_plans_stay_in_window,
    judge_logs.check_only_received_records_are_handled,
    judge_backfill.check_outcomes_are_of_chosen_offsets,
    judge_backfill.check_each_chosen_offset_is_counted_once,
    judge_backfill.check_an_older_epoch_is_settled,
)


def judge(evidence: Evidence, *, max_retries: int | None = None, settled: bool = False) -> Report:
    """Return what does not hold in `evidence`.

    With `max_retries`, the number of attempts is judged, too; None: the pipeline has no single limit. With `settled`,
    nothing may be open, pending or behind.
    """
    lane, found = LaneHistory(evidence), Findings()
    for check_lane in LANE_RULES:
        check_lane(lane, found)
    for partition in lane.partitions():
        for check_partition in PARTITION_RULES:
            check_partition(partition, found)
        if max_retries is not None:
            judge_attempts.check_attempts_within_limit(partition, max_retries, found)
    judge_commits(lane, found)
    judge_outputs(lane, settled, found)
    if settled:
        judge_settled(lane, found)
    judge_dead_letters(lane, max_retries, found)
    judge_calls(lane, max_retries, settled, found)
    return make_report(lane, found.sentences)
