"""Version 1: jobs with their summaries, attempts, event files and their blocks of lines, what was rejected."""

from __future__ import annotations

STATEMENTS = (
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    # generation counts the batches that brought something new; a summary is of summary_generation. ETT is in parts per
    # million, so that it sorts and pages as an integer; -1: none.
    """CREATE TABLE job (
        id {id},
        name {name} NOT NULL UNIQUE,
        generation BIGINT NOT NULL DEFAULT 0,
        summary_generation BIGINT NOT NULL DEFAULT -1,
        as_of_ns BIGINT NOT NULL DEFAULT 0,
        team TEXT NOT NULL DEFAULT '',
        owner TEXT NOT NULL DEFAULT '',
        model TEXT NOT NULL DEFAULT '',
        state TEXT NOT NULL DEFAULT 'queued',
        window_state TEXT NOT NULL DEFAULT 'RUNNING',
        attempts BIGINT NOT NULL DEFAULT 0,
        ranks BIGINT NOT NULL DEFAULT 0,
        started_ns BIGINT NOT NULL DEFAULT 0,
        ended_ns BIGINT NOT NULL DEFAULT 0,
        total_ns BIGINT NOT NULL DEFAULT 0,
        scheduling_ns BIGINT NOT NULL DEFAULT 0,
        initialization_ns BIGINT NOT NULL DEFAULT 0,
        compilation_ns BIGINT NOT NULL DEFAULT 0,
        effective_ns BIGINT NOT NULL DEFAULT 0,
        wasted_ns BIGINT NOT NULL DEFAULT 0,
        shutdown_ns BIGINT NOT NULL DEFAULT 0,
        lost_ns BIGINT NOT NULL DEFAULT 0,
        ett_ppm BIGINT NOT NULL DEFAULT -1,
        launch TEXT NOT NULL DEFAULT '{{}}',
        recipe TEXT NOT NULL DEFAULT '{{}}'
    )""",
    "CREATE INDEX job_by_start ON job (started_ns, name)",
    "CREATE INDEX job_by_ett ON job (ett_ppm, name)",
    "CREATE INDEX job_by_lost ON job (lost_ns, name)",
    "CREATE INDEX job_by_team ON job (team, started_ns, name)",
    "CREATE INDEX job_by_model ON job (model, started_ns, name)",
    "CREATE INDEX job_by_state ON job (state, started_ns, name)",
    "CREATE INDEX job_unfinished ON job (as_of_ns) WHERE window_state = 'RUNNING'",
    "CREATE INDEX job_unsummed ON job (id) WHERE generation <> summary_generation",
    """CREATE TABLE attempt (
        job_id BIGINT NOT NULL REFERENCES job (id),
        number BIGINT NOT NULL,
        started_ns BIGINT NOT NULL,
        ended_ns BIGINT NOT NULL,
        reason TEXT NOT NULL,
        world BIGINT NOT NULL,
        scheduling_ns BIGINT NOT NULL,
        initialization_ns BIGINT NOT NULL,
        compilation_ns BIGINT NOT NULL,
        effective_ns BIGINT NOT NULL,
        wasted_ns BIGINT NOT NULL,
        shutdown_ns BIGINT NOT NULL,
        PRIMARY KEY (job_id, number)
    )""",
    """CREATE TABLE event_file (
        id {id},
        job_id BIGINT NOT NULL REFERENCES job (id),
        attempt BIGINT NOT NULL,
        name {name} NOT NULL,
        num_events BIGINT NOT NULL DEFAULT 0,
        num_blocks BIGINT NOT NULL DEFAULT 0,
        is_torn BIGINT NOT NULL DEFAULT 0,
        UNIQUE (job_id, name)
    )""",
    # Lines of one file, compressed together: no sequence number is in two lines of a file (docs/store.md says how).
    """CREATE TABLE event_block (
        file_id BIGINT NOT NULL REFERENCES event_file (id),
        number BIGINT NOT NULL,
        first_seq BIGINT NOT NULL,
        last_seq BIGINT NOT NULL,
        num_events BIGINT NOT NULL,
        raw_bytes BIGINT NOT NULL,
        data {blob} NOT NULL,
        PRIMARY KEY (file_id, number)
    )""",
    "CREATE INDEX event_block_by_seq ON event_block (file_id, last_seq)",
    """CREATE TABLE file_position (
        file_id BIGINT PRIMARY KEY REFERENCES event_file (id),
        next_byte BIGINT NOT NULL,
        head_crc BIGINT NOT NULL,
        tail_crc BIGINT NOT NULL
    )""",
    # place: the byte where a file's line begins, or the digest of a line that came alone: one again is no second one.
    """CREATE TABLE reject (
        file_id BIGINT NOT NULL REFERENCES event_file (id),
        place TEXT NOT NULL,
        code TEXT NOT NULL,
        line {blob} NOT NULL,
        PRIMARY KEY (file_id, place)
    )""",
)
