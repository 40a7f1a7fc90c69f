"""Handing decided tokens to a request: stop conditions, text, gaps and log-probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from adaverify_engine.acceptance import Verdict
from adaverify_engine.request import Event, FinishReason, Request


@dataclass(frozen=True, slots=True)
class Decided:
    """A verdict on the host. Lists by sequence: accepted drafts, tokens, their logits rows and gaps."""

    accepted: list[int]
    tokens: list[list[int]]
    rows: list[list[int]]
    gaps: list[list[float]]

    @classmethod
    def of(cls, verdict: Verdict) -> Decided:
        """Copy ``verdict`` to the host: the one wait of a step."""
        return cls(
            verdict.accepted.tolist(), verdict.tokens.tolist(), verdict.rows.tolist(), verdict.gaps.tolist()
        )


def emit(request: Request, decided: Decided, index: int, logits: torch.Tensor | None) -> tuple[Event, int]:
    """Append the tokens of sequence ``index`` until one ends the request; return the event and the cut.

    Only tokens that the target decided arrive here. A draft that was refused or not admitted is in none of
    the request's tokens, text, stop detection, gaps or log-probabilities. Without logits there are no
    log-probabilities.
    """
    count = decided.accepted[index] + 1
    emitted: list[int] = []
    for place in range(count):
        token = decided.tokens[index][place]
        emitted.append(token)
        request.tokens.append(token)
        greedy = request.sampling.greedy
        request.gaps.append(decided.gaps[index][place] if greedy else float("nan"))
        if logits is not None and request.sampling.logprobs:
            row = logits[decided.rows[index][place]]
            request.logprobs.append(float(row[token] - row.logsumexp(0)))
        request.finished = _ending(request, token)
        if request.finished is not None:
            break
    piece = request.text.take(final=request.finished is not None)
    return Event(request.id, tuple(emitted), piece, request.finished), count - len(emitted)


def _ending(request: Request, token: int) -> FinishReason | None:
    if token in request.stop_tokens:
        return FinishReason.STOP_TOKEN
    try:
        stopped = request.text.push(token)
    except Exception as error:  # noqa: BLE001 - this request ends here, its batch mates go on
        request.error = f"{type(error).__name__}: {error}"
        return FinishReason.FAILED
    if stopped:
        return FinishReason.STOP_TEXT
    if request.output_len >= request.max_output:
        return FinishReason.LENGTH
    return None
