"""What a file or a row that cannot be imported looks like, in words a person recognises."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["looks_like", "packed_as", "unreadable_as"]

_PACKED = (
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"\xfd7zXZ\x00", "xz"),
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),
)
_BZIP2_BLOCK = b"1AY&SY"
_UNREADABLE = (
    (
        b"version https://git-lfs.github.com/spec/",
        "a Git-LFS pointer, not the data; fetch the data with `git lfs pull`",
    ),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive; unpack it first"),
    (b"Rar!\x1a\x07", "a rar archive; unpack it first"),
    (b"\x04\x22\x4d\x18", "lz4 data; unpack it first"),
    (b"SQLite format 3\x00", "an SQLite database; export its table as JSON lines"),
    (b"\x89HDF", "an HDF5 file; export it as JSON lines"),
    (b"Obj\x01", "an Avro file; export it as JSON lines"),
    (b"ORC", "an ORC file; export it as parquet"),
    (b"\x93NUMPY", "a NumPy array; it holds no text"),
    (b"\x80\x04\x95", "a pickle, which is not opened: it could run anything; export it as JSON lines"),
    (b"\x80\x05\x95", "a pickle, which is not opened: it could run anything; export it as JSON lines"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"\x7fELF", "a program"),
    (b"<!DOCTYPE", "a web page, not the data; the download may need a login"),
    (b"<html", "a web page, not the data; the download may need a login"),
    (b"\xff\xfe", "UTF-16; convert the file to UTF-8"),
    (b"\xfe\xff", "UTF-16; convert the file to UTF-8"),
)
_TAR_PLACE, _TAR_MAGIC = 257, b"ustar"


def packed_as(head: bytes) -> str:
    """How data that begin with `head` are packed: gzip, zstd, xz, bzip2, zip, or ""."""
    if head.startswith(b"BZh") and len(head) > 4 and _BZIP2_BLOCK.startswith(head[4:10]):
        return "bzip2"
    return next((name for magic, name in _PACKED if head.startswith(magic)), "")


def unreadable_as(head: bytes) -> str:
    """What data that begin with `head` are, where nothing can be imported from them; "" if something may."""
    if head[_TAR_PLACE : _TAR_PLACE + len(_TAR_MAGIC)] == _TAR_MAGIC:
        return "a tar archive; unpack it first"
    return next((words for magic, words in _UNREADABLE if head.lower().startswith(magic.lower())), "")


_LIKENESSES: tuple[tuple[frozenset[str], str], ...] = tuple(
    (frozenset(keys.split()), words)
    for keys, words in (
        ("chosen rejected", "preference pairs"),
        ("prompt completion", "prompts with completions, not sessions"),
        ("instruction output", "instructions with outputs, not sessions"),
        ("instance_id model_patch", "SWE-bench predictions: patches, no session"),
        ("instance_id problem_statement", "SWE-bench tasks: no session was run yet"),
        ("hash_ids", "a trace of hashes and lengths, which holds no text"),
        ("custom_id method url", "a batch of API requests; their replies stand in another file"),
        ("nbformat cells", "a notebook"),
        ("architectures model_type", "a model's configuration"),
        ("added_tokens model", "a tokenizer"),
        ("input_ids", "token ids, which hold no text of a known tokenizer"),
        ("mapping current_node", "a ChatGPT export, which is a tree"),
        ("messageID sessionID", "a part of an opencode session"),
        ("info messages", "an opencode export"),
        ("kind source timestamp", "events of the OpenHands SDK"),
        ("log", "a log document, such as a HAR recording of a browser"),
        ("question answer", "questions with answers, not sessions"),
        ("question_id choices", "answers of a benchmark, without their prompts"),
        ("prompt", "prompts alone"),
        ("text", "plain texts"),
    )
)


def looks_like(value: Any) -> str:
    """What a row of no known format looks like, "" if nothing is known of it."""
    keys = value.keys() if isinstance(value, Mapping) else ()
    return next((words for wanted, words in _LIKENESSES if wanted <= set(keys)), "")
