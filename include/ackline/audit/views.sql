-- The views of `ackline sql`, over the tables of all chosen pipelines and lanes: _plans, _outcomes, _settlements.
--
-- DuckDB and Spark both run this text, so both give the same rows. It uses only what both of them have: no QUALIFY, no
-- ASOF JOIN, no unnest. For DuckDB, `sql.py` defines Spark's functions explode and unix_micros.

CREATE VIEW _effective AS
SELECT DISTINCT pipeline, lane, epoch, turn FROM _settlements WHERE kind <> 'void';

-- The newest settlement of each lane. A reset opens the next epoch, which begins with nothing pending.
CREATE VIEW _newest AS
SELECT pipeline, lane, epoch, turn, kind = 'reset' AS opens_epoch,
       CASE WHEN kind = 'reset' THEN epoch + 1 ELSE epoch END AS newest_epoch
FROM (
    SELECT pipeline, lane, epoch, turn, kind,
           row_number() OVER (PARTITION BY pipeline, lane ORDER BY epoch DESC, turn DESC) AS age
    FROM (SELECT DISTINCT pipeline, lane, epoch, turn, kind FROM _settlements) AS settled_turns
) AS by_age
WHERE age = 1;

CREATE VIEW _live_turns AS
SELECT e.pipeline, e.lane, e.epoch, e.turn
FROM _effective e JOIN _newest n ON e.pipeline = n.pipeline AND e.lane = n.lane AND e.epoch = n.newest_epoch
WHERE e.lane = 'live';

CREATE VIEW attempts AS
SELECT o.*, e.turn IS NOT NULL AS effective
FROM _outcomes o LEFT JOIN _effective e
ON o.pipeline = e.pipeline AND o.lane = e.lane AND o.epoch = e.epoch AND o.turn = e.turn;

CREATE VIEW outcomes AS
SELECT o.* FROM _outcomes o SEMI JOIN _live_turns t
ON o.pipeline = t.pipeline AND o.lane = t.lane AND o.epoch = t.epoch AND o.turn = t.turn
WHERE o.lane = 'live';

CREATE VIEW plans AS SELECT * FROM _plans WHERE topic IS NOT NULL;

CREATE VIEW settlements AS SELECT * FROM _settlements;

CREATE VIEW pending AS
SELECT pipeline, lane, epoch, topic, partition, run.start_offset AS "offset", run.end_offset,
       run.end_offset - run.start_offset AS offsets, run.kind, run.attempts, run.due, run.error_class
FROM (
    SELECT s.pipeline, s.lane, s.epoch, s.topic, s.partition, explode(s.pending) AS run
    FROM _settlements s JOIN _newest n
    ON s.pipeline = n.pipeline AND s.lane = n.lane AND s.epoch = n.epoch AND s.turn = n.turn
    WHERE NOT n.opens_epoch
) AS runs_of_offsets;

-- A decision on a range is one row, with an end_offset. It also settles the records in the range that failed before. A
-- record is in a range if the furthest end of all ranges that begin at or below its offset is above its offset. max_by
-- ignores nulls in DuckDB, so without coalesce an acked record would have the error of an earlier attempt. A row with an
-- answer ends the attempt in flight that has the same number, perhaps in the same turn.
CREATE VIEW records AS
WITH own AS (
    SELECT pipeline, lane, epoch, topic, partition, "offset", max(attempt) AS attempts,
           max_by(outcome, (turn, attempt = 0, attempt, answer IS NOT NULL)) AS outcome,
           nullif(max_by(coalesce(error_class, ''), (turn, attempt = 0, attempt, answer IS NOT NULL)), '') AS error_class,
           min(handled_at) AS first_at, max(handled_at) AS last_at, max(record_timestamp) AS record_timestamp,
           max(key_hash64) AS key_hash64
    FROM outcomes WHERE end_offset IS NULL
    GROUP BY pipeline, lane, epoch, topic, partition, "offset"
),
ranges AS (SELECT * FROM outcomes WHERE end_offset IS NOT NULL),
waiting_and_ranges AS (
    SELECT pipeline, lane, epoch, topic, partition, "offset", NULL AS attempts, NULL AS failure, NULL AS first_at,
           NULL AS last_at, NULL AS record_timestamp, NULL AS key_hash64, end_offset, outcome, error_class, handled_at
    FROM ranges
    UNION ALL
    SELECT pipeline, lane, epoch, topic, partition, "offset", attempts, error_class, first_at,
           last_at, record_timestamp, key_hash64, NULL, NULL, NULL, NULL
    FROM own WHERE outcome IN ('failed', 'in_flight', 'held_back')
),
waiting AS (
    SELECT pipeline, lane, epoch, topic, partition, "offset", attempts, failure, first_at, last_at, record_timestamp,
           key_hash64, max(end_offset) OVER up_to_here AS furthest,
           max_by(outcome, end_offset) OVER up_to_here AS decision,
           max_by(coalesce(error_class, ''), end_offset) OVER up_to_here AS decision_class,
           max_by(handled_at, end_offset) OVER up_to_here AS decided_at
    FROM waiting_and_ranges
    WINDOW up_to_here AS (PARTITION BY pipeline, lane, epoch, topic, partition ORDER BY "offset", attempts NULLS FIRST
                          ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
)
SELECT pipeline, lane, epoch, topic, partition, "offset", CAST(NULL AS BIGINT) AS end_offset, outcome, attempts,
       error_class, first_at, last_at, record_timestamp, key_hash64
FROM own WHERE outcome NOT IN ('failed', 'in_flight', 'held_back')
UNION ALL
SELECT pipeline, lane, epoch, topic, partition, "offset", NULL,
       CASE WHEN furthest > "offset" THEN decision ELSE 'pending' END, attempts,
       CASE WHEN furthest > "offset" THEN nullif(decision_class, '') ELSE failure END, first_at,
       CASE WHEN furthest > "offset" THEN decided_at ELSE last_at END, record_timestamp, key_hash64
FROM waiting WHERE attempts IS NOT NULL
UNION ALL
SELECT pipeline, lane, epoch, topic, partition, "offset", end_offset, outcome, 0, error_class, handled_at, handled_at,
       record_timestamp, key_hash64
FROM ranges;

-- One row for each settled turn. `records` counts attempts: rows of ranges are decisions, and no handler was called for
-- them. `by_operator` marks a turn that `ackline void` has closed, as void or as lost. The kind is compared as well,
-- because the evidence of an action is the operator's own text.
CREATE VIEW turns AS
WITH planned AS (
    SELECT pipeline, lane, epoch, turn, min(planned_at) AS planned_at FROM _plans
    WHERE topic IS NOT NULL GROUP BY pipeline, lane, epoch, turn
),
settled AS (
    SELECT pipeline, lane, epoch, turn, min(kind) AS kind, min(run_id) AS run_id, min(actor) AS actor,
           min(reason) AS reason, min(code) AS code, max(settled_at) AS settled_at, count(*) AS partitions,
           coalesce(bool_or((kind = 'void' AND evidence = 'voided by an operator')
                            OR (kind = 'run' AND evidence = 'recorded as lost by an operator')), false) AS by_operator,
           sum(coalesce(counts['acked'], 0)) AS acked, sum(coalesce(counts['failed'], 0)) AS failed,
           sum(coalesce(counts['skipped'], 0)) AS skipped, sum(coalesce(counts['dropped'], 0)) AS dropped,
           sum(coalesce(counts['dead'], 0)) AS dead, sum(coalesce(counts['expired'], 0)) AS expired,
           sum(coalesce(counts['compacted'], 0)) AS compacted, sum(coalesce(counts['lost'], 0)) AS lost,
           sum(coalesce(counts['acked'], 0) + coalesce(counts['failed'], 0) + coalesce(counts['dropped'], 0)
               + coalesce(counts['in_flight'], 0)
               + coalesce(counts['skipped'], 0) - coalesce(metrics['skipped_in_ranges'], 0)
               - coalesce(metrics['answered'], 0)) AS records,
           sum(coalesce(metrics['new_records'], 0)) AS new_records,
           sum(coalesce(metrics['new_failed'], 0)) AS new_failed
    FROM _settlements GROUP BY pipeline, lane, epoch, turn
)
SELECT s.pipeline, s.lane, s.epoch, s.turn, s.kind, s.run_id, s.actor, s.reason, p.planned_at AS start,
       s.settled_at AS "end", (unix_micros(s.settled_at) - unix_micros(p.planned_at)) / 1e6 AS duration,
       s.partitions, s.by_operator, s.code,
       CAST(CASE WHEN s.kind = 'run' THEN s.records ELSE 0 END AS BIGINT) AS records,
       CAST(CASE WHEN s.kind = 'run' THEN s.new_records ELSE 0 END AS BIGINT) AS new_records,
       CAST(CASE WHEN s.kind = 'run' THEN s.new_failed ELSE 0 END AS BIGINT) AS new_failed,
       CAST(acked AS BIGINT) AS acked, CAST(failed AS BIGINT) AS failed, CAST(skipped AS BIGINT) AS skipped,
       CAST(dropped AS BIGINT) AS dropped, CAST(dead AS BIGINT) AS dead, CAST(expired AS BIGINT) AS expired,
       CAST(compacted AS BIGINT) AS compacted, CAST(lost AS BIGINT) AS lost
FROM settled s LEFT JOIN planned p
ON s.pipeline = p.pipeline AND s.lane = p.lane AND s.epoch = p.epoch AND s.turn = p.turn;

-- One row for each run: all turns that it has settled. A turn that an operator has closed is an action, and no run.
-- `code` is that of the newest of these turns.
CREATE VIEW runs AS
SELECT pipeline, lane, run_id, min(start) AS start, max("end") AS "end",
       (unix_micros(max("end")) - unix_micros(min(start))) / 1e6 AS duration,
       count(*) AS turns, count(*) FILTER (WHERE kind = 'void') AS void_turns, CAST(sum(records) AS BIGINT) AS records,
       CAST(sum(new_records) AS BIGINT) AS new_records, CAST(sum(new_failed) AS BIGINT) AS new_failed,
       CAST(sum(acked) AS BIGINT) AS acked, CAST(sum(failed) AS BIGINT) AS failed, CAST(sum(dead) AS BIGINT) AS dead,
       max_by(code, (epoch, turn)) AS code
FROM turns WHERE kind IN ('run', 'void') AND NOT by_operator GROUP BY pipeline, lane, run_id;
