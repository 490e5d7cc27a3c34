"""The elements of one large JSON array, a buffer at a time."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Generator, Iterator

from agentbench_spec.jsonl import BadLine
from agentbench_spec.rollouts.importing.notes import RowFault

__all__ = ["array_elements"]

_FIRST_CHUNK_CHARACTERS = 1 << 18
_MARGIN_CHARACTERS = 64
_BETWEEN = re.compile(r"[\s,]*")
_SCANNER = json.JSONDecoder(strict=False)


class _Buffer:
    """Text of the pieces read so far and not yet used."""

    def __init__(self, pieces: Iterator[bytes | BadLine]) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.text = ""
        self.position = 0
        self.broken: BadLine | None = None
        self.ended = False
        self.lost = False
        """True once damage ran to the end of the data."""

    def grow(self, characters: int) -> None:
        """Read at least `characters` more, or to the end."""
        parts, read = [self.text[self.position :]], 0
        while read < characters and not self.ended:
            piece = next(self._pieces, None)
            if piece is None or isinstance(piece, BadLine):
                self.ended, self.broken = True, piece
            parts.append(self._decoder.decode(piece if isinstance(piece, bytes) else b"", final=self.ended))
            read += len(parts[-1])
        self.text, self.position = "".join(parts), 0

    def lines(self) -> Iterator[bytes | BadLine]:
        """All that is left, line by line."""
        text = self.text[self.position :].encode("utf-8", "surrogateescape")
        while not self.ended or text:
            while not self.ended and b"\n" not in text:
                piece = next(self._pieces, None)
                self.ended = not isinstance(piece, bytes)
                self.broken = piece if isinstance(piece, BadLine) else None
                text += piece if isinstance(piece, bytes) else b""
            line, end, text = text.partition(b"\n")
            yield line + end
        if self.broken is not None:
            yield self.broken

    def skip(self, pattern: re.Pattern[str]) -> str:
        """Pass over what matches; returns the next character, "" at the end."""
        while True:
            match = pattern.match(self.text, self.position)
            self.position = match.end() if match else self.position
            if self.position < len(self.text) or self.ended:
                return self.text[self.position : self.position + 1]
            self.grow(_FIRST_CHUNK_CHARACTERS)


Elements = Generator[str | RowFault | BadLine, None, Iterator[bytes | BadLine]]


def array_elements(pieces: Iterator[bytes | BadLine]) -> Elements:
    """JSON text of each element of the array in `pieces`; a damaged element is a RowFault, and reading goes on.

    The generator's value is what follows the array, as lines.

    After damage, reading goes on at the next line that starts as the first element did.
    """
    buffer = _Buffer(pieces)
    buffer.grow(_FIRST_CHUNK_CHARACTERS)
    buffer.position = buffer.text.index("[") + 1
    resume = _resume_pattern(buffer)
    closed = False
    while (character := buffer.skip(_BETWEEN)) and not closed:
        closed = character == "]"
        if closed:
            buffer.position += 1
            continue
        yield _element(buffer, resume)
    if closed and character:
        return buffer.lines()
    if buffer.broken is not None:
        yield buffer.broken
    elif not closed and not buffer.lost:
        yield RowFault(None, "the array has no end; the file looks cut off, copy it again")
    return iter(())


def _resume_pattern(buffer: _Buffer) -> re.Pattern[str]:
    """Where an element may start: a line with the first element's indentation and opening character."""
    opening = buffer.skip(_BETWEEN) or "{"
    before = buffer.text[: buffer.position].rpartition("\n")
    indent = before[2] if before[1] and not before[2].strip() else ""
    return re.compile(rf"\n{re.escape(indent)}(?={re.escape(opening)})")


def _element(buffer: _Buffer, resume: re.Pattern[str]) -> str | RowFault:
    grow = _FIRST_CHUNK_CHARACTERS
    while True:
        try:
            _, stop = _SCANNER.raw_decode(buffer.text, buffer.position)
            text = buffer.text[buffer.position : stop]
            buffer.position = stop
            return text
        except RecursionError:
            return _skip_damage(buffer, resume, "is nested too deeply to be read")
        except ValueError as error:
            if buffer.ended or _certain(error, buffer):
                return _skip_damage(buffer, resume, f"is not JSON ({error})")
            buffer.grow(grow)
            grow *= 2


def _certain(error: ValueError, buffer: _Buffer) -> bool:
    """True if more text cannot mend the fault: it lies well before the end of what is there."""
    if not isinstance(error, json.JSONDecodeError):
        return True
    return len(buffer.text) - error.pos > _MARGIN_CHARACTERS and "Unterminated string" not in error.msg


def _skip_damage(buffer: _Buffer, resume: re.Pattern[str], reason: str) -> RowFault:
    start = buffer.position + 1
    while True:
        if found := resume.search(buffer.text, start):
            buffer.position = found.end()
            break
        if buffer.ended:
            buffer.position, buffer.lost = len(buffer.text), True
            break
        start = 0
        buffer.position = len(buffer.text)
        buffer.grow(_FIRST_CHUNK_CHARACTERS)
    return RowFault(None, reason)
