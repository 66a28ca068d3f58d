"""Reads a commit from docs/checkpoint.md alone: shares no code with the product, favours plainness over speed."""

from __future__ import annotations

import itertools
import json
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import xxhash
import zstandard

MASK, GOLDEN = (1 << 64) - 1, 0x9E3779B97F4A7C15
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8, "int64": 8, "bool": 1}


def read_commit(folder: Path, seq: int) -> tuple[dict[tuple[str, int], bytes], dict[str, tuple[str, list[int], bytes]]]:
    """Return rows, (table, id) -> bytes of weight and states, and dense tensors, name -> (dtype, shape, bytes)."""
    data = (folder / f"commits/{seq:016d}.json").read_bytes()
    commit = json.loads(data)
    check_seal(data, commit)
    return read_tables(folder, commit), read_dense(folder, commit)


def read_dense(folder: Path, commit: dict[str, Any]) -> dict[str, tuple[str, list[int], bytes]]:
    """Return name -> (dtype, shape, bytes); opens no pickle."""
    entry = commit["dense"]
    if "dcp_version" not in entry:
        return read_dense_segment(folder, entry["files"][0])
    assert "dense.dcp.v1" in commit["features_required"]
    files = {}
    for file in entry["files"]:
        data = (folder / file["path"]).read_bytes()
        assert (len(data), xxhash.xxh3_128(data).hexdigest()) == (file["bytes"], file["xxh3_128"])
        files[file["path"].removeprefix(f"{entry['dir']}/")] = data
    document = json.loads(files["state.json"])
    check_seal(files["state.json"], document)
    assert (document["ckpt_uuid"], document["seq_parent"]) == (entry["ckpt_uuid"], entry["seq"] - 1)
    tensors = {}
    for tensor in document["tensors"]:
        shape, width = tensor["shape"], ITEM_BYTES[tensor["dtype"]]
        elements = [b""] * math.prod(shape)
        for chunk in tensor["chunks"]:
            raw = files[chunk["file"]][chunk["at"] : chunk["at"] + chunk["bytes"]]
            for number, index in enumerate(itertools.product(*map(range, chunk["sizes"]))):
                position = 0
                for offset, i, length in zip(chunk["offsets"], index, shape, strict=True):
                    position = position * length + offset + i
                elements[position] = raw[number * width : (number + 1) * width]
        assert all(elements)
        assert tensor["digest"] == tensor_digest(elements)
        tensors[tensor["name"]] = (tensor["dtype"], shape, b"".join(elements))
    assert len(tensors) == entry["n_items"]
    parts = [[t["name"], t["dtype"], t["shape"], t["digest"]] for t in document["tensors"]]
    parts = sorted(part for part in parts if not part[0].startswith("loader."))
    tree = {part: value for part, value in document["tree"].items() if part != "loader"}
    text = json.dumps([parts, tree], sort_keys=True, separators=(",", ":"))
    assert entry["digest"] == xxhash.xxh3_128(text.encode()).hexdigest()
    return tensors


def read_dense_segment(folder: Path, file: dict[str, Any]) -> dict[str, tuple[str, list[int], bytes]]:
    dense = read_segment(folder, file, "")
    document = json.loads(dense["json"][0][0])
    rest = b"".join(payload for payload, _ in dense["tensors"])
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    for name, dtype, shape in document["items"]:
        size = ITEM_BYTES[dtype] * math.prod(shape)
        tensors[name], rest = (dtype, shape, rest[:size]), rest[size:]
    assert not rest
    return tensors


def read_tables(folder: Path, commit: dict[str, Any]) -> dict[tuple[str, int], bytes]:
    """Return (table, id) -> bytes of weight and states."""
    known = {"seg.v1", "full.v1", "hotcold.v1", "dense.dcp.v1", "filelists.v1", "quantised.v1"}
    assert set(commit["features_required"]) <= known
    for listed in commit.get("file_lists", []):
        data = (folder / listed["path"]).read_bytes()
        assert (len(data), xxhash.xxh3_128(data).hexdigest()) == (listed["bytes"], listed["xxh3_128"])
        document = json.loads(data)
        check_seal(data, document)
        for part in document["tables"]:
            (table,) = (table for table in commit["tables"] if table["id"] == part["id"])
            table["files"] += part["files"]
    rows: dict[tuple[str, int], bytes] = {}
    for table in commit["tables"]:
        widths = [table["dim"] * ITEM_BYTES[table["weight_dtype"]]]
        widths += [state["width"] * ITEM_BYTES[state["dtype"]] for state in table["states"]]
        names = ["weight", *(f"state:{state['name']}" for state in table["states"])]
        for file in sorted(table["files"], key=lambda file: file["seq"]):
            sections = read_segment(folder, file, table["fqn"])
            if file.get("weight_bits"):
                blocks = sections["weight"]
                sections["weight"] = [(dequantised(b, r, table["dim"], file["weight_bits"]), r) for b, r in blocks]
            columns = [b"".join(payload for payload, _ in sections[name]) for name in names]
            ids = [i for block in sections["ids"] for i in unpack_ids(*block)]
            gone = [i for block in sections.get("tombstones", []) for i in unpack_ids(*block)]
            assert (len(ids), len(gone)) == (file["n_rows"], file["n_tomb"])
            for n, i in enumerate(ids):
                parts = [column[n * width : (n + 1) * width] for column, width in zip(columns, widths, strict=True)]
                rows[table["fqn"], i] = b"".join(parts)
            for i in gone:
                rows.pop((table["fqn"], i), None)
        mine = {row_id: row for (name, row_id), row in rows.items() if name == table["fqn"]}
        assert len(mine) == table["rows"]
        assert table["digest"] in (None, table_digest(table, mine, widths))
    return rows


def table_digest(table: dict[str, Any], rows: dict[int, bytes], widths: list[int]) -> str:
    total = 0

    def seed(text: str) -> int:
        return int(xxhash.xxh3_64(f"{table['fqn']}|{text}".encode()).intdigest())

    groups = [("weight", table["weight_dtype"], table["dim"])]
    groups += [(f"state:{state['name']}", state["dtype"], state["width"]) for state in table["states"]]
    seeds = [seed(f"{name}|{dtype}|{elements}") for name, dtype, elements in groups]
    for row_id, row in rows.items():
        a, start = 0, 0
        for s, width in zip(seeds, widths, strict=True):
            data = row[start : start + width]
            for j in range(-(-width // 8)):
                word = int.from_bytes(data[8 * j : 8 * j + 8], "little")
                a += fold(word ^ mix(s + (2 * j + 1) * GOLDEN)) * (mix(s + (2 * j + 2) * GOLDEN) | 1)
            start += width
        total += mix(a + mix(row_id & MASK ^ seed("ids")))
    return f"{total & MASK:016x}"


def tensor_digest(elements: list[bytes]) -> str:
    total = 0
    for number, element in enumerate(elements):
        block, lane = divmod(number, 1024)
        value = int.from_bytes(element, "little")
        total += fold(value ^ mix((2 * lane + 1) * GOLDEN)) * (mix((2 * lane + 2) * GOLDEN) | 1) * (mix(~block) | 1)
    return f"{total & MASK:016x}"


def mix(x: int) -> int:
    x &= MASK
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ x >> 27) * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def fold(x: int) -> int:
    x = (x ^ x >> 32) * 0xD6E8FEB86659FD93 & MASK
    return x ^ x >> 32


def check_seal(data: bytes, fields: dict[str, Any]) -> None:
    """The hash is of the same bytes without the field that holds it."""
    field = f'"manifest_xxh3_128":"{fields["manifest_xxh3_128"]}"'.encode()
    assert data.count(field) == 1
    rest = data.replace(field + b",", b"") if field + b"," in data else data.replace(b"," + field, b"")
    assert fields["manifest_xxh3_128"] == xxhash.xxh3_128(rest).hexdigest()


def read_segment(folder: Path, file: dict[str, Any], table: str) -> dict[str, list[tuple[bytes, tuple[int, ...]]]]:
    """Return for each section its blocks: payload and index record."""
    data = (folder / file["path"]).read_bytes()
    assert len(data) == file["bytes"]
    assert (data[:8], data[-8:]) == (b"RCKSEG1\0", b"RCKEND1\0")
    assert data[-24:-8].hex() == file["xxh3_128"] == xxhash.xxh3_128(data[:-24]).hexdigest()
    length, crc = struct.unpack("<II", data[8:16])
    assert zlib.crc32(data[16 : 16 + length]) == crc
    header = json.loads(data[16 : 16 + length])
    assert (header["table"], header["seq_parent"]) == (table, file["seq"] - 1)
    assert all(header[key] == file[key] for key in ("ckpt_uuid", "step", "kind", "writer", "part"))
    crc, offset, size, total = struct.unpack("<IQQQ", data[-52:-24])
    assert total == len(data)
    assert zlib.crc32(data[offset : offset + size]) == crc
    sections: dict[str, list[Any]] = {section["name"]: [] for section in header["sections"]}
    for record in struct.iter_unpack("<HHIQQQqqQ", data[offset : offset + size]):
        section, _, _, start, stored, _, _, _, checksum = record
        payload = data[start : start + stored]
        assert xxhash.xxh3_64(payload).intdigest() == checksum
        sections[header["sections"][section]["name"]].append((payload, record))
    return sections


def dequantised(payload: bytes, record: tuple[int, ...], dim: int, bits: int) -> bytes:
    assert record[1] == {8: 3, 4: 4}[bits]
    most, size = 2**bits - 1, 8 + (dim * bits + 7) // 8
    values = b""
    for start in range(0, len(payload), size):
        low, high = struct.unpack("<ff", payload[start : start + 8])
        codes = list(payload[start + 8 : start + size])
        if bits == 4:
            codes = [half for byte in codes for half in (byte & 15, byte >> 4)]
        step = (high - low) / most
        row = [low if q == 0 else high if q == most else low + q * step for q in codes[:dim]]
        values += struct.pack(f"<{dim}f", *row)
    assert len(values) == record[5]
    return values


def unpack_ids(payload: bytes, record: tuple[int, ...]) -> list[int]:
    _, codec, num_rows, _, _, _, first, last, _ = record
    width = {1: 4, 2: 8}[codec]
    shuffled = zstandard.ZstdDecompressor().decompress(payload, max_output_size=max(1, width * num_rows))
    count = num_rows - 1
    ids = [first]
    for n in range(count):
        step = sum(shuffled[byte * count + n] << 8 * byte for byte in range(width))
        ids.append((ids[-1] + step + 2**63) % 2**64 - 2**63)
    assert ids[-1] == last
    return ids
