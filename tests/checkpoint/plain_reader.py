"""Reads a commit from docs/checkpoint.md alone: shares no code with the product, favours plainness over speed."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import xxhash
import zstandard

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float64": 8, "int64": 8, "bool": 1}


def read_commit(folder: Path, seq: int) -> tuple[dict[tuple[str, int], bytes], dict[str, tuple[str, list[int], bytes]]]:
    """Return rows, (table, id) -> bytes of weight and states, and dense tensors, name -> (dtype, shape, bytes)."""
    data = (folder / f"commits/{seq:016d}.json").read_bytes()
    commit = json.loads(data)
    check_seal(data, commit)
    rows: dict[tuple[str, int], bytes] = {}
    for table in commit["tables"]:
        for file in table["files"]:
            sections = read_segment(folder, file, table["fqn"])
            ids = [i for block in sections["ids"] for i in unpack_ids(*block)]
            widths = [table["dim"] * ITEM_BYTES[table["weight_dtype"]]]
            widths += [state["width"] * ITEM_BYTES[state["dtype"]] for state in table["states"]]
            names = ["weight", *(f"state:{state['name']}" for state in table["states"])]
            columns = [b"".join(payload for payload, _ in sections[name]) for name in names]
            for n, i in enumerate(ids):
                parts = [column[n * width : (n + 1) * width] for column, width in zip(columns, widths, strict=True)]
                rows[table["fqn"], i] = b"".join(parts)
    dense = read_segment(folder, commit["dense"]["files"][0], "")
    document = json.loads(dense["json"][0][0])
    rest = b"".join(payload for payload, _ in dense["tensors"])
    tensors: dict[str, tuple[str, list[int], bytes]] = {}
    for name, dtype, shape in document["items"]:
        size = ITEM_BYTES[dtype]
        for length in shape:
            size *= length
        tensors[name], rest = (dtype, shape, rest[:size]), rest[size:]
    assert not rest
    return rows, tensors


def check_seal(data: bytes, fields: dict[str, Any]) -> None:
    inner = {key: value for key, value in fields.items() if key != "manifest_xxh3_128"}
    text = json.dumps(inner, sort_keys=True, separators=(",", ":"))
    assert fields["manifest_xxh3_128"] == xxhash.xxh3_128(text.encode()).hexdigest()
    assert data.decode() == json.dumps(fields, sort_keys=True, separators=(",", ":"))


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
