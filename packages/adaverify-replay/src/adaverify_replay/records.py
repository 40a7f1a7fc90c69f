"""Acceptance records: what a real drafter said, and what became of it, at every position of real text.

A run's trace knows the fate of the drafts that were verified. Records know it of all K, at every position
that any policy can reach: with n drafts admitted at position p, min(n, accepted[p]) are accepted and the
request moves on by one more. So policies are compared on one truth, without a model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from adaverify_contracts import RecordsError, Seen
from adaverify_replay.records_file import read_arrays, write_arrays

VERSION = 1
SOURCES = ("code", "chat", "prose")
REGIMES = ("greedy", "sampled")
BUNDLED = Path(__file__).with_name("data") / "smollm2-block.npz"
"""Records of SmolLM2-135M and its block drafter that come with this package."""

# K of any drafter that is worth recording, and more positions than a day of recording gives.
MOST_DRAFTS = 64
MOST_POSITIONS = 1 << 24
REMEDY = "record them again with `adaverify record`"


@dataclass(frozen=True, slots=True)
class RecordsHeader:
    """What records are of; JSON-ready.

    Attributes:
        model, drafter: their names.
        draft_tokens: K.
        seen: name of a ``Seen``, what the drafter's score for position k had seen.
        deterministic: drafts are a function of the prefix.
        temperature: of the sampled sequences; 0 where there are none.
        seed: of the sampled sequences.
        source: how the text came about, JSON-ready.
    """

    model: str
    drafter: str
    draft_tokens: int
    seen: str
    deterministic: bool
    temperature: float
    seed: int
    source: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, kinds in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kinds) or (bool not in kinds and isinstance(value, bool)):
                raise RecordsError(
                    f"the {name} of the records' header has the wrong type",
                    arrived=value,
                    allowed=" or ".join(kind.__name__ for kind in kinds),
                    remedy=REMEDY,
                )
        if not 1 <= self.draft_tokens <= MOST_DRAFTS:
            raise _refused("draft_tokens of the header", self.draft_tokens, f"1 .. {MOST_DRAFTS}")
        if self.seen not in Seen.__members__:
            raise _refused("seen of the header", self.seen, ", ".join(Seen.__members__))
        if not 0.0 <= self.temperature < float("inf"):
            raise _refused("temperature of the header", self.temperature, "a finite number >= 0")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON-ready header."""
        return {item.name: getattr(self, item.name) for item in fields(self)} | {"source": dict(self.source)}


_KINDS: dict[str, tuple[type, ...]] = {
    "model": (str,),
    "drafter": (str,),
    "draft_tokens": (int,),
    "seen": (str,),
    "deterministic": (bool,),
    "temperature": (float, int),
    "seed": (int,),
    "source": (Mapping,),
}
# Name of each array with its dtype, in the order of the digest.
ARRAYS: dict[str, np.dtype[Any]] = {
    "scores": np.dtype(np.float16),
    "accepted": np.dtype(np.uint8),
    "starts": np.dtype(np.int64),
    "source": np.dtype(np.uint8),
    "regime": np.dtype(np.uint8),
    "contexts": np.dtype(np.int32),
}


@dataclass(frozen=True, slots=True, eq=False)
class AcceptanceRecords:
    """The truth about a drafter over S sequences with P positions in all, checked when it is made.

    At a position the newest token is the target's own and the drafts are of the K tokens after it. Every
    position
    knows the fate of all its K drafts: the last K tokens of a sequence are targets of drafts and no
    positions.

    Attributes:
        header: what they are of.
        scores: float16 [P, K], the drafter's raw scores: logits of a confidence head, uncalibrated.
        accepted: uint8 [P], how many of the K drafts are accepted where all are verified, 0 .. K.
        starts: int64 [S + 1]; positions of sequence s are starts[s] .. starts[s + 1] - 1.
        source: uint8 [S], index into ``SOURCES``.
        regime: uint8 [S], index into ``REGIMES``: at temperature 0, or sampled with noise that trimming does
            not move, where a draft counts if it is the token drawn.
        contexts: int32 [S], KV length at the first position of each sequence; it grows by 1 a position.

    Raises:
        RecordsError: an array has another dtype or shape, or values contradict one another.
    """

    header: RecordsHeader
    scores: np.ndarray
    accepted: np.ndarray
    starts: np.ndarray
    source: np.ndarray
    regime: np.ndarray
    contexts: np.ndarray

    def __post_init__(self) -> None:
        self._check_shapes()
        self._check_values()

    @classmethod
    def load(cls, path: Path | None = None) -> AcceptanceRecords:
        """Read what ``save`` wrote; ``BUNDLED`` when None.

        Raises:
            RecordsError: the file is missing, damaged, of another version, or its content is not what its
                digest was made of.
        """
        path = BUNDLED if path is None else Path(path)
        arrays, document = read_arrays(path, ARRAYS)
        try:
            if document.get("version") != VERSION:
                raise _refused("their version", document.get("version"), str(VERSION))
            content = {name: value for name, value in document.items() if name not in ("version", "digest")}
            known = {item.name for item in fields(RecordsHeader)}
            if content.keys() != known:
                raise _refused("keys of the header", sorted(content.keys() ^ known), "those of this version")
            records = cls(RecordsHeader(**content), **arrays)
            if document.get("digest") != records.digest:
                raise _refused("their digest", document.get("digest"), f"{records.digest}, of the content")
        except RecordsError as error:
            raise RecordsError(
                error.problem,
                path=str(path),
                arrived=error.arrived,
                allowed=error.allowed,
                remedy=error.remedy,
            ) from error
        return records

    def save(self, path: Path) -> None:
        """Write one compressed archive of arrays, without pickles; equal records give equal bytes.

        Readers see the old file or the new one, never half of it.

        Raises:
            RecordsError: it cannot be written.
        """
        document = {"version": VERSION, **self.header.as_dict(), "digest": self.digest}
        write_arrays(Path(path), {name: getattr(self, name) for name in ARRAYS}, document)

    @property
    def digest(self) -> str:
        """SHA-256 of the header and of every array, hexadecimal."""
        found = hashlib.sha256(json.dumps(self.header.as_dict(), sort_keys=True).encode())
        for name, kind in ARRAYS.items():
            array = getattr(self, name)
            found.update(f"{name} {array.shape} ".encode())
            found.update(np.ascontiguousarray(array, kind.newbyteorder("<")).tobytes())
        return found.hexdigest()

    @property
    def positions(self) -> int:
        """P, positions of all sequences."""
        return len(self.accepted)

    @property
    def sequences(self) -> int:
        """S."""
        return len(self.source)

    @property
    def draft_tokens(self) -> int:
        """K."""
        return self.header.draft_tokens

    @property
    def lengths(self) -> np.ndarray:
        """int64 [S], positions of each sequence."""
        return np.diff(self.starts)

    def of(self, source: str | None = None, regime: str | None = None) -> np.ndarray:
        """Return the sequences, int64, of one source and one regime; None stands for every one.

        Raises:
            RecordsError: there is no such word.
        """
        keep = np.ones(self.sequences, dtype=bool)
        for word, words, column in ((source, SOURCES, self.source), (regime, REGIMES, self.regime)):
            if word is None:
                continue
            if word not in words:
                raise RecordsError(
                    "there are no such sequences",
                    arrived=word,
                    allowed=", ".join(words),
                    remedy="choose one of the allowed words, or leave it out",
                )
            keep &= column == words.index(word)
        return np.flatnonzero(keep)

    def take(self, sequences: np.ndarray) -> AcceptanceRecords:
        """Return the records of some sequences, int64, in this order.

        Raises:
            RecordsError: none is left.
        """
        chosen = np.asarray(sequences, dtype=np.int64)
        rows = [np.arange(self.starts[one], self.starts[one + 1]) for one in chosen]
        at = np.concatenate(rows) if rows else np.zeros(0, dtype=np.int64)
        starts = np.concatenate([[0], np.cumsum(self.lengths[chosen])]).astype(np.int64)
        return AcceptanceRecords(
            self.header,
            scores=self.scores[at],
            accepted=self.accepted[at],
            starts=starts,
            source=self.source[chosen],
            regime=self.regime[chosen],
            contexts=self.contexts[chosen],
        )

    def first(self, draft_tokens: int) -> AcceptanceRecords:
        """Return the records of a drafter that stops after its first ``draft_tokens`` drafts of a position.

        What was accepted of them is known, since a draft counts only behind those before it. More than K were
        never drafted, so nobody knows what would have become of them.

        Raises:
            RecordsError: ``draft_tokens`` is not in 1 .. K; has both numbers.
        """
        known = self.draft_tokens
        if not 1 <= draft_tokens <= known:
            raise RecordsError(
                f"the records have {known} drafts a position, and {draft_tokens} were asked for",
                arrived=draft_tokens,
                allowed=f"1 .. {known}",
                remedy=f"choose at most {known}, or record with `adaverify record --draft-tokens NUMBER`",
            )
        if draft_tokens == known:
            return self
        return replace(
            self,
            header=replace(self.header, draft_tokens=draft_tokens),
            scores=np.ascontiguousarray(self.scores[:, :draft_tokens]),
            accepted=np.minimum(self.accepted, draft_tokens).astype(np.uint8),
        )

    def _check_shapes(self) -> None:
        if not isinstance(self.header, RecordsHeader):
            raise _refused("the header", type(self.header).__name__, "a RecordsHeader")
        for name, kind in ARRAYS.items():
            array = getattr(self, name)
            if not isinstance(array, np.ndarray) or array.dtype != kind:
                raise _refused(f"the array {name}", getattr(array, "dtype", type(array).__name__), str(kind))
        count, sequences = len(self.accepted), len(self.source)
        wanted = {
            "scores": (count, self.header.draft_tokens),
            "accepted": (count,),
            "starts": (sequences + 1,),
            "source": (sequences,),
            "regime": (sequences,),
            "contexts": (sequences,),
        }
        found = {name: getattr(self, name).shape for name in ARRAYS}
        if found != wanted:
            raise _refused("the shapes of the arrays", found, str(wanted))
        if not 1 <= count <= MOST_POSITIONS:
            raise _refused("the number of positions", count, f"1 .. {MOST_POSITIONS}")

    def _check_values(self) -> None:
        starts = self.starts
        if starts[0] != 0 or starts[-1] != self.positions or (np.diff(starts) < 1).any():
            raise _refused(
                "starts",
                starts[:8].tolist(),
                f"rising from 0 to {self.positions}, one position a sequence at least",
            )
        if int(self.accepted.max()) > self.draft_tokens:
            raise _refused("accepted", int(self.accepted.max()), f"0 .. {self.draft_tokens}")
        if not np.isfinite(self.scores).all():
            raise _refused("scores", "values that are not finite", "finite numbers")
        for name, words in (("source", SOURCES), ("regime", REGIMES)):
            highest = int(getattr(self, name).max())
            if highest >= len(words):
                raise _refused(name, highest, f"0 .. {len(words) - 1}, for {', '.join(words)}")
        if int(self.contexts.min()) < 1:
            raise _refused("contexts", int(self.contexts.min()), "KV lengths >= 1")


def _refused(what: str, arrived: object, allowed: str) -> RecordsError:
    return RecordsError(
        f"acceptance records cannot be used because of {what}",
        arrived=arrived,
        allowed=allowed,
        remedy=REMEDY,
    )
