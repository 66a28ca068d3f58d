"""Packs: only what was signed here, for this key, with paths of torch's caches, is ever unpacked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ett.compile_cache.cache_folder import allowed_paths, read_files, write_files
from ett.compile_cache.cache_paths import identity, is_allowed, is_graph
from ett.compile_cache.pack import Pack, open_pack, seal_pack
from ett.errors import CorruptState

SECRET = b"a secret of this host"
HASH = "ct3ssphnjoow4v4i4d5jj3gsk3uis65qx6qxogo524qcicmae7mr"
GRAPH = f"fxgraph/p5/f{HASH}/p{HASH}"
FILES = {GRAPH: b"graph" * 100, f"t3/{HASH}.py": b"source", f"23/{HASH}.main.so": b"\x7fELF" * 50}
PACK = Pack(key="k1", parts={"software": {"torch": "2"}}, files=FILES)


def opened(data: bytes, secret: bytes = SECRET, key: str = "k1", most_bytes: int = 1 << 20) -> Pack:
    return open_pack(data, secret, key=key, most_bytes=most_bytes, where="here")


def test_what_is_packed_is_what_comes_out() -> None:
    assert opened(seal_pack(PACK, SECRET)) == PACK


def test_a_pack_has_one_spelling() -> None:
    turned = Pack(key="k1", parts=PACK.parts, files=dict(reversed(FILES.items())))
    assert seal_pack(turned, SECRET) == seal_pack(PACK, SECRET)


def test_every_flipped_byte_is_refused() -> None:
    whole = seal_pack(PACK, SECRET)
    for at in range(len(whole)):
        broken = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        with pytest.raises(CorruptState, match="here") as refused:
            opened(broken)
        assert refused.value.code == "C011"


@settings(max_examples=50)
@given(st.integers(0, len(seal_pack(PACK, SECRET)) - 1))
def test_every_torn_pack_is_refused(length: int) -> None:
    with pytest.raises(CorruptState):
        opened(seal_pack(PACK, SECRET)[:length])


def test_another_hosts_key_is_refused() -> None:
    with pytest.raises(CorruptState, match="not signed with this key"):
        opened(seal_pack(PACK, b"another secret, of some host"))


def test_a_pack_for_another_key_is_refused() -> None:
    with pytest.raises(CorruptState, match="is for the key k1") as refused:
        opened(seal_pack(PACK, SECRET), key="k2")
    assert refused.value.code == "C012"


def test_a_pack_that_unpacks_to_more_than_is_allowed_is_refused() -> None:
    with pytest.raises(CorruptState, match="at most 100 bytes"):
        opened(seal_pack(PACK, SECRET), most_bytes=100)


FOREIGN = [
    "../escaped.so",
    "/etc/passwd",
    f"t3/../{HASH}.py",
    "t3/short.py",
    f"t3/{HASH}.sh",
    f"locks/{HASH}.lock",
    "dynamo/code_state_x.bin",
    f"fxgraph/p5/f{HASH}/../{HASH}",
    f"t3/{HASH}.py\n",
    "",
]


@pytest.mark.parametrize("path", FOREIGN)
def test_a_signed_path_that_no_cache_has_is_refused(path: str) -> None:
    with pytest.raises(CorruptState, match="has a file") as refused:
        opened(seal_pack(Pack(key="k1", parts={}, files={path: b"x"}), SECRET))
    assert refused.value.code == "C012"


REAL = [
    GRAPH,
    f"aotautograd/cf/a{HASH}/z{HASH}",
    f"ul/c{HASH}.py",
    f"23/c{HASH}.main.cpp",
    f"th/c{HASH}.so",
    "lx/ea34f0ad059199d058afcae45c6574227d196e256d7b3f2992568764c31d438b.best_config",
    "triton/0/WZFQ5SWMOJBQRRDJJVMOTRCOK3ELW2X2RQUI3ZKP4EO744ETTVUA/triton_per_fused_gelu_backward_0.cubin",
    "triton/0/WZFQ5SWMOJBQRRDJJVMOTRCOK3ELW2X2RQUI3ZKP4EO744ETTVUA/__grp__triton_per_fused_gelu_backward_0.json",
]


@pytest.mark.parametrize("path", REAL)
def test_paths_of_torchs_caches_are_allowed(path: str) -> None:
    assert is_allowed(path)


def test_graphs_are_known_by_their_key_not_by_their_pickle() -> None:
    assert identity(GRAPH) == identity(GRAPH[:-4] + "aaaa")
    assert is_graph(GRAPH)
    assert identity(f"t3/{HASH}.py") == f"t3/{HASH}.py"
    assert not is_graph(f"t3/{HASH}.py")


def test_a_folder_comes_out_as_it_was_packed(tmp_path: Path) -> None:
    write_files(tmp_path / "a", FILES)
    assert read_files(tmp_path / "a", (), 1 << 20) == FILES
    assert (tmp_path / "a").stat().st_mode & 0o077 == 0


def test_what_a_folder_has_besides_is_left_out(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / f"{HASH}.lock").write_text("")
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    os.symlink(secret, tmp_path / "t3" / f"{HASH[::-1]}.py")
    assert read_files(tmp_path, (), 1 << 20) == FILES


def test_what_is_known_is_not_read(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    assert read_files(tmp_path, {identity(GRAPH)}, 1 << 20) == {k: v for k, v in FILES.items() if k != GRAPH}


def test_a_folder_above_the_bound_is_not_packed(tmp_path: Path) -> None:
    write_files(tmp_path, FILES)
    assert read_files(tmp_path, (), 100) is None


def test_unpacking_leaves_files_that_are_there(tmp_path: Path) -> None:
    write_files(tmp_path, {GRAPH: b"mine"})
    write_files(tmp_path, FILES)
    assert (tmp_path / GRAPH).read_bytes() == b"mine"
    assert allowed_paths(tmp_path) == sorted(FILES)
