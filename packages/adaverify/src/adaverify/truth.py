"""Recording what a drafter says, and what becomes of it, at every position of text that the target writes."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from adaverify.blame import blaming_plugins
from adaverify.loaded import require_completed
from adaverify.running import sampling_of
from adaverify.session import Session
from adaverify.texts import Text
from adaverify_contracts import BlockDrafter, EngineError, RecordsError
from adaverify_engine import Completion, Sampling
from adaverify_engine.anchors import AnchorDrafter
from adaverify_replay import REGIMES, SOURCES, AcceptanceRecords, RecordsHeader

Advance = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Task:
    """One sequence to record: its text, the prompt's token ids, and how the target continues it."""

    text: Text
    ids: list[int]
    sampling: Sampling

    @property
    def regime(self) -> int:
        """Index into ``REGIMES``."""
        return REGIMES.index("greedy" if self.sampling.greedy else "sampled")


@dataclass(frozen=True, slots=True)
class Truth:
    """Records, and how many sequences were too short to have a position."""

    records: AcceptanceRecords
    short: int


def tasks_of(
    texts: Sequence[Text],
    ids: Sequence[list[int]],
    tokens: int,
    *,
    share: float,
    temperature: float,
    seed: int,
) -> list[Task]:
    """Return every text once greedy, and the first ``share`` of each source's sampled as well.

    Args:
        texts: what is continued; ids: their token ids.
        tokens: tokens to write, those that drafts are held against at the end included.
        share: 0 .. 1.
        temperature: of the sampled ones.
        seed: of the sampled ones.
    """
    chosen = []
    for source in SOURCES:
        own = [index for index, text in enumerate(texts) if text.source == source]
        chosen += own[: round(share * len(own))]
    greedy = sampling_of(len(texts), tokens, 0.0, None)
    drawn = sampling_of(len(chosen), tokens, temperature, seed, trim_invariant=True)
    return [Task(*one) for one in zip(texts, ids, greedy, strict=True)] + [
        Task(texts[index], ids[index], sampling) for index, sampling in zip(chosen, drawn, strict=True)
    ]


def record_truth(
    session: Session,
    tasks: Sequence[Task],
    done: Sequence[Completion],
    anchors: AnchorDrafter,
    run: dict[str, Any],
    *,
    seed: int,
    advance: Advance,
) -> Truth:
    """Draft at every position of what the target wrote.

    Args:
        session: of the run's sizes.
        tasks: the sequences; done: what ``write_texts`` returned for them.
        anchors: what ``anchor_drafter`` returned.
        run: sizes for the header.
        seed: of the sampled sequences, for the header.
        advance: called as ``advance(sequences, all)``.

    Raises:
        RecordsError: no sequence is long enough.
        PluginError: a plugin's code raised.
    """
    kept: list[tuple[Task, int]] = []
    scores, accepted = [], []
    for count, (task, one) in enumerate(zip(tasks, done, strict=True), start=1):
        first, last = len(task.ids), len(task.ids) + len(one.tokens) - 1 - session.options.draft_tokens
        if last >= first:
            with blaming_plugins(session.plugins):
                drafts = anchors.draft([*task.ids, *one.tokens], first, last, task.sampling.temperature)
            kept.append((task, last - first + 1))
            scores.append(drafts.scores.astype(np.float16))
            accepted.append(drafts.accepted.astype(np.uint8))
        advance(count, len(tasks))
    if not kept:
        raise RecordsError(
            "no sequence is long enough to be recorded",
            arrived=[len(one.tokens) for one in done][:8],
            allowed=f"more than {session.options.draft_tokens} tokens, those of one block of drafts",
            remedy="raise --tokens, or take other prompts",
        )
    header = _header(session, [task for task, _ in kept], run, seed)
    records = AcceptanceRecords(
        header,
        scores=np.concatenate(scores),
        accepted=np.concatenate(accepted),
        starts=np.concatenate([[0], np.cumsum([length for _, length in kept])]).astype(np.int64),
        source=np.array([SOURCES.index(task.text.source) for task, _ in kept], np.uint8),
        regime=np.array([task.regime for task, _ in kept], np.uint8),
        contexts=np.array([len(task.ids) for task, _ in kept], np.int32),
    )
    return Truth(records, len(tasks) - len(kept))


def no_block_drafter(name: str, arrived: str) -> EngineError:
    """Return why the drafter ``name`` cannot be recorded; ``arrived`` says what it is, or why it drafts."""
    return EngineError(
        f"the drafter {name} cannot be recorded",
        arrived=arrived or name,
        allowed="one that drafts a block from the target's state (contract BlockDrafter)",
        remedy="choose another drafter; `adaverify run --trace` records any",
    )


def anchor_drafter(session: Session) -> AnchorDrafter:
    """Return the session's drafter, ready to draft anywhere.

    Raises:
        EngineError: it does not draft in blocks, or does not fit the model.
        PluginError: its code raised.
    """
    options = session.options
    with blaming_plugins(session.plugins):
        block = session.new_drafter(torch.device(options.device))
    if not isinstance(block, BlockDrafter):
        raise no_block_drafter(session.drafter.name, session.fallback or type(block).__name__)
    dtype, device = getattr(torch, options.dtype), torch.device(options.device)
    with blaming_plugins(session.plugins):
        return AnchorDrafter(block, session.model.model, dtype, device, options.draft_tokens)


def write_texts(session: Session, tasks: Sequence[Task], advance: Advance) -> list[Completion]:
    """Let the target continue every text without drafts; calls ``advance(sequences, all)``.

    Raises:
        PluginError: a plugin's code raised, or its tokenizer failed for a text.
    """
    engine = session.engine("none")
    try:
        with blaming_plugins(session.plugins):
            numbers = [engine.add(task.ids, task.sampling) for task in tasks]
            finished = 0
            while not engine.idle:
                finished += sum(event.finished is not None for event in engine.step())
                advance(finished, len(tasks))
        done = engine.take()
    finally:
        engine.verifier.close()
    completions = [done[number] for number in numbers]
    require_completed(completions, session.model_name, session.plugins)
    return completions


def _header(session: Session, tasks: Sequence[Task], run: dict[str, Any], seed: int) -> RecordsHeader:
    drafter = session.drafter
    return RecordsHeader(
        model=session.model.model.geometry.name,
        drafter=drafter.name,
        draft_tokens=session.options.draft_tokens,
        seen=drafter.seen.name,
        deterministic=drafter.deterministic,
        temperature=max(task.sampling.temperature for task in tasks),
        seed=seed,
        source={
            **run,
            "dtype": session.options.dtype,
            "device": session.options.device,
            "device_name": session.capability.device_name,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
    )
