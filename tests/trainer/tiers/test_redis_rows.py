"""Against a real server; what dies, loses or alters rows is an error and never a row."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from redis_process import RedisProcess
from tier_stores import connect

from ett.errors import AccessDenied, ConfigError, CorruptState, Unreachable
from ett.trainer.sparse.tiers.redis_rows import RedisRows

pytestmark = pytest.mark.process
IDS = np.arange(5000) - 2500
ROWS = np.repeat((IDS[:, None] % 256), 64, axis=1).astype(np.uint8)
StartRedis = Callable[..., RedisProcess]


def raw_client(url: str) -> Any:
    redis = pytest.importorskip("redis")
    return redis.Redis.from_url(url)


def filled(url: str, **place: Any) -> RedisRows:
    rows = RedisRows("t", 64, connect(url, **place), "weights")
    rows.write(IDS, ROWS)
    return rows


def read(rows: RedisRows) -> np.ndarray:
    out = np.zeros_like(ROWS)
    assert rows.read(IDS, out).all()
    return out


def test_a_server_that_dies_is_an_error_naming_table_and_address(start_redis: StartRedis) -> None:
    server = start_redis()
    rows = filled(server.url)
    server.kill()
    for call in (lambda: read(rows), lambda: rows.write(IDS, ROWS), lambda: rows.free(IDS)):
        with pytest.raises(Unreachable, match=rf"table t: Redis at {server.path}: .*\(attempts: 2\)"):
            call()


def test_a_server_that_came_back_empty_has_lost_rows(start_redis: StartRedis) -> None:
    server = start_redis()
    rows = filled(server.url)
    raw_client(server.url).flushall()
    with pytest.raises(CorruptState, match=rf"table t: Redis at {server.path} has lost the row of id -2500"):
        read(rows)


@pytest.mark.parametrize("value", [b"", b"\0" * 72, b"\0" * 71])
def test_a_value_that_is_not_the_written_one_is_an_error(start_redis: StartRedis, value: bytes) -> None:
    server = start_redis()
    rows, client = filled(server.url), raw_client(server.url)
    (key,) = client.keys(b"ett:*:t:weights:" + (7).to_bytes(8, "little"))
    client.set(key, value)
    with pytest.raises(CorruptState, match="id 7"):
        read(rows)


def test_the_row_of_another_id_is_an_error(start_redis: StartRedis) -> None:
    server = start_redis()
    rows, client = filled(server.url), raw_client(server.url)
    key, other = (client.keys(b"ett:*:t:weights:" + i.to_bytes(8, "little"))[0] for i in (7, 8))
    client.set(key, client.get(other))
    with pytest.raises(CorruptState, match="holds another row for id 7"):
        read(rows)


def test_a_dropped_connection_is_mended_within_the_attempts(start_redis: StartRedis) -> None:
    server = start_redis()
    rows = filled(server.url)
    raw_client(server.url).execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    assert np.array_equal(read(rows), ROWS)


def test_a_server_that_never_answers_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(Unreachable, match=rf"Redis at 127.0.0.1:{port}: Timeout .*\(attempts: 2\)"):
            connect(f"redis://127.0.0.1:{port}/0", timeout_s=0.2)


def test_a_full_server_is_an_error_and_written_rows_are_still_read(start_redis: StartRedis) -> None:
    server = start_redis("--maxmemory", "4mb", "--maxmemory-policy", "noeviction")
    rows = filled(server.url)
    many = np.arange(10_000, 200_000)
    with pytest.raises(Unreachable, match=r"table t: .*maxmemory") as caught:
        rows.write(many, np.zeros((len(many), 64), np.uint8))
    assert caught.value.code == "S002"
    assert np.array_equal(read(rows), ROWS)


def test_a_password_that_is_wrong_is_an_error_that_does_not_show_it(start_redis: StartRedis) -> None:
    server = start_redis("--requirepass", "secret")
    with pytest.raises(AccessDenied) as caught:
        connect(f"unix://:wrong@{server.path}")
    assert "wrong@" not in caught.value.render()
    assert np.array_equal(read(filled(f"unix://:secret@{server.path}")), ROWS)


def test_what_is_no_url_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"sparse.redis_url"):
        connect("http://nowhere")


def test_two_lives_of_a_rank_never_read_each_others_rows(start_redis: StartRedis) -> None:
    server = start_redis()
    old = filled(server.url)
    new = filled(server.url)
    old_rows_are_gone = pytest.raises(CorruptState, match="has lost the row")
    with old_rows_are_gone:
        read(old)
    old.write(IDS, np.zeros_like(ROWS))
    assert np.array_equal(read(new), ROWS)


def test_a_new_life_removes_what_its_rank_and_ranks_that_are_no_more_left(start_redis: StartRedis) -> None:
    server = start_redis()
    filled(server.url, rank=0, world_size=3)
    stays = filled(server.url, rank=1, world_size=3)
    filled(server.url, rank=2, world_size=3)
    others = filled(server.url, job="another*")
    assert raw_client(server.url).dbsize() == 4 * len(IDS) + 2
    connect(server.url, rank=0, world_size=2)
    assert raw_client(server.url).dbsize() == 2 * len(IDS) + 2
    assert np.array_equal(read(stays), ROWS)
    assert np.array_equal(read(others), ROWS)


def test_closing_leaves_no_key(start_redis: StartRedis) -> None:
    server = start_redis()
    connection = connect(server.url)
    rows = RedisRows("t", 64, connection, "weights")
    rows.write(IDS, ROWS)
    rows.close()
    connection.close()
    assert raw_client(server.url).dbsize() == 0
