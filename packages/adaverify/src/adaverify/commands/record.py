"""``adaverify record``: the truth about a drafter at every position, to simulate with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.console import count_of, emit_json, note, out, progress, reports_errors, say, table
from adaverify.course import LOADED, Course
from adaverify.drafting import DRAFTER
from adaverify.files import require_writable
from adaverify.options import Device, Drafter, DraftTokens, Dtype, Json, Model, Offline
from adaverify.outset import MODEL, Choice, Outset
from adaverify.prompting import encode_prompts
from adaverify.session import Session, load_session, prepare
from adaverify.texts import Text, texts_of
from adaverify.truth import anchor_drafter, no_block_drafter, record_truth, tasks_of, write_texts
from adaverify.usage import LARGEST_SEED, finite_temperature, path, share_of_one
from adaverify_contracts import AdaverifyError, RecordsError
from adaverify_replay import REGIMES, SOURCES, AcceptanceRecords
from adaverify_replay.records import MOST_DRAFTS

# Share of the command in which the target writes; drafting everywhere takes the rest.
_WRITTEN = 0.5


@reports_errors
def record(
    output: Annotated[
        Path,
        typer.Option("--out", parser=path, metavar="PATH", help="The file; `simulate --records` reads it."),
    ],
    code: Annotated[int, typer.Option(min=0, help="HumanEval prompts.")] = 32,
    chat: Annotated[
        int, typer.Option(min=0, help="Questions and HumanEval prompts in the chat template.")
    ] = 16,
    prose: Annotated[
        int,
        typer.Option(min=0, help="Openings of the standard library's documentation, of held-out modules."),
    ] = 16,
    sampled: Annotated[
        float,
        typer.Option(
            callback=share_of_one, help="Share of the prompts that are recorded sampled as well, 0 .. 1."
        ),
    ] = 0.5,
    temperature: Annotated[
        float, typer.Option(callback=finite_temperature, help="Of the sampled sequences.")
    ] = 0.8,
    tokens: Annotated[
        int, typer.Option(min=1, max=1 << 20, help="Positions to record of each sequence, at most.")
    ] = 112,
    concurrency: Annotated[
        int, typer.Option(min=1, max=65536, help="Requests that the target writes at once.")
    ] = 16,
    seed: Annotated[int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the sampled sequences.")] = 1,
    draft_tokens: DraftTokens = None,
    model: Model = MODEL,
    drafter: Drafter = None,
    device: Device = None,
    dtype: Dtype = None,
    offline: Offline = False,
    json: Json = False,
) -> None:
    """Record what a block drafter says, and what the target accepts of it, at every position of real text.

    The target writes without drafts; then it is drafted for at every position of what it wrote. With that any
    budget at any step can be judged without a model. Drafts at which a sequence ends are left out.
    """
    require_writable(output, "--out")
    texts = texts_of(code, chat, prose)
    if not texts:
        raise AdaverifyError(
            "there is nothing to record",
            arrived="no prompts",
            allowed="at least one of --code, --chat and --prose above 0",
            remedy="ask for some prompts",
        )
    if sampled and temperature == 0.0:
        raise typer.BadParameter("--temperature 0 is greedy; allowed with --sampled: above 0")
    choice = Choice(model, drafter, device, dtype, draft_tokens, seed, offline, uncalibrated=True)
    outset = prepare(choice, mode="none")
    _require_recordable(outset)
    # The last block of drafts is held against tokens that are no positions themselves.
    length, at_once = tokens + outset.options.draft_tokens, min(concurrency, len(texts))
    outset.require_sizes(at_once, 1 + length)
    with progress() as display:
        course = Course(display)
        session = load_session(outset, course.stage(f"loading {model}", LOADED))
        ids = _encode(session, texts)
        session = session.sized(at_once, max(map(len, ids)) + length)
        tasks = tasks_of(texts, ids, length, share=sampled, temperature=temperature, seed=seed)
        anchors = anchor_drafter(session)
        done = write_texts(session, tasks, course.stage("the target writes", LOADED + _WRITTEN))
        run = {
            "prompts": {source: sum(one.source == source for one in texts) for source in SOURCES},
            "sampled_share": sampled,
            "tokens": tokens,
            "concurrency": session.options.max_requests,
        }
        advance = course.stage("drafting at every position")
        truth = record_truth(session, tasks, done, anchors, run, seed=seed, advance=advance)
    truth.records.save(output)
    report = {
        "file": str(output),
        "bytes": output.stat().st_size,
        "digest": truth.records.digest,
        "header": truth.records.header.as_dict(),
        "left_out": truth.short,
        "kinds": _kinds(truth.records),
    }
    if json:
        emit_json(report)
    else:
        _render(report)
    if truth.short:
        note(f"{count_of(truth.short, 'sequence')} ended too soon: no position has a whole block behind it")


def _require_recordable(outset: Outset) -> None:
    """Refuse a K that no records have, and the drafter that is known to keep requests."""
    draft_tokens = outset.options.draft_tokens
    if not 1 <= draft_tokens <= MOST_DRAFTS:
        raise RecordsError(
            "records of this K cannot be kept",
            arrived=draft_tokens,
            allowed=f"1 .. {MOST_DRAFTS}",
            remedy="choose --draft-tokens within it",
        )
    named = outset.choice.drafters[:1]
    if outset.drafting is not None:
        named = (outset.drafting.first.name,)
    if named == (DRAFTER,):
        raise no_block_drafter(DRAFTER, outset.drafting.fallback if outset.drafting else "")


def _encode(session: Session, texts: list[Text]) -> list[list[int]]:
    """Return the ids of every text, in order; chat and plain ones are encoded apart."""
    found: dict[int, list[int]] = {}
    for chat in (False, True):
        own = [index for index, one in enumerate(texts) if one.chat is chat]
        ids = encode_prompts(
            session, [texts[index].text for index in own], [texts[index].place for index in own], 1, chat
        )
        found.update(zip(own, ids, strict=True))
    return [found[index] for index in range(len(texts))]


def _kinds(records: AcceptanceRecords) -> list[dict[str, Any]]:
    """Return one row a source and regime: sequences, positions, and what full blocks would get accepted."""
    rows = []
    for regime in REGIMES:
        for source in SOURCES:
            chosen = records.of(source, regime)
            if not len(chosen):
                continue
            taken = records.take(chosen)
            rows.append(
                {
                    "source": source,
                    "regime": regime,
                    "sequences": taken.sequences,
                    "positions": taken.positions,
                    "accepted": float(taken.accepted.mean()),
                    "survival": [
                        float((taken.accepted > place).mean()) for place in range(taken.draft_tokens)
                    ],
                }
            )
    return rows


def _render(report: dict[str, Any]) -> None:
    header = report["header"]
    say(f"{header['model']}, drafter {header['drafter']}, K = {header['draft_tokens']}")
    out().print()
    rows = [
        (one["source"], one["regime"], one["sequences"], one["positions"], one["accepted"], *one["survival"])
        for one in report["kinds"]
    ]
    places = [str(place) for place in range(1, header["draft_tokens"] + 1)]
    columns = ("source", "regime", "texts", "positions", "accepted", *places)
    out().print(
        table("Accepted drafts at a position, and the share of positions that get so far", columns, rows)
    )
    out().print()
    say(f"Records: {report['file']} ({report['bytes']} bytes, {report['digest'][:12]})")
