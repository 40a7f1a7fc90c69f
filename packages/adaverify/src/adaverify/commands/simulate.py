"""``adaverify simulate``: what each way to choose budgets would do, on recorded truth and measured times."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from adaverify.calibration_source import naming_setting
from adaverify.console import count_of, emit_json, note, out, progress, reports_errors, say, table
from adaverify.course import Course
from adaverify.options import Calibration, Json
from adaverify.session import discover, discover_here
from adaverify.step_times import span, step_times, table_in_words
from adaverify.usage import LARGEST_SEED, path
from adaverify_contracts import CostTableError, Limits, RecordsError
from adaverify_engine.row_tiers import FEW, ROWS, row_tiers
from adaverify_replay import BUNDLED, REGIMES, SOURCES, AcceptanceRecords, RecordsHeader
from adaverify_replay.records import MOST_DRAFTS
from adaverify_replay.simulate import ArmResult, Planning, Scene, arm_names
from adaverify_replay.simulate import simulate as run_scene
from adaverify_replay.simulate.arms import LAG
from adaverify_replay.simulate.run import WARMUP
from adaverify_runtime import check_calibration, contained, read_calibration
from adaverify_runtime.assembly import manager_options
from adaverify_runtime.plugins import pick
from adaverify_verification import CostTable
from adaverify_verification.table_truth import ladder_of

_CONCURRENCY = [1, 4, 16, 64]
# Kernels count the tokens of a step in 32 bits.
_MOST_TOKENS = 2**31 - 1


@reports_errors
def simulate(
    cost: Annotated[
        Path | None,
        typer.Option(
            "--table",
            parser=path,
            metavar="PATH",
            help="Step times, of `adaverify profile --table`; ADAVERIFY_PATHS_COST_TABLE when omitted.",
        ),
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            parser=path,
            metavar="PATH",
            help="A file of `adaverify record`; the one that is shipped when omitted.",
        ),
    ] = None,
    concurrency: Annotated[
        list[int] | None,
        typer.Option(min=1, max=4096, help="Requests at once; may be repeated. 1, 4, 16 and 64."),
    ] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option(help="Only this arm: none, fixed-1 .. fixed-K, adaptive, oracle; may be repeated."),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Only records of code, chat or prose.")] = None,
    regime: Annotated[str | None, typer.Option(help="Only records that are greedy, or sampled.")] = None,
    tiers: Annotated[
        str | None,
        typer.Option(
            help="Token counts that steps are padded to, with commas; those of the table's setup when "
            "omitted, '' for none."
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 20, help="KV length at the start of each sequence; as recorded when omitted."
        ),
    ] = None,
    lag: Annotated[
        int, typer.Option(min=0, max=64, help="Steps from a confidence to the budget that reads it.")
    ] = LAG,
    warmup: Annotated[
        int, typer.Option(min=0, max=65536, help="Steps of each arm before those that count.")
    ] = WARMUP,
    tokens: Annotated[
        int | None,
        typer.Option(
            min=1, max=1 << 24, help="Tokens that count at least; one pass over the records when omitted."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(min=0, max=LARGEST_SEED, help="Seed of the order of the sequences.")
    ] = 0,
    draft_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=MOST_DRAFTS,
            help="K: the first so many recorded drafts of each position. When omitted that of the settings "
            "if they name one, else the table's, else all.",
        ),
    ] = None,
    calibration: Calibration = None,
    json: Json = False,
) -> None:
    """Compare no drafts, fixed numbers of drafts, adaptive and an oracle, without a model.

    Adaptive is the manager that serves: its signal and policy are those of the settings. The oracle knows
    which drafts are accepted. All arms walk over the same recorded text; a step takes what the table says.
    """
    asked = None if tiers is None else _counts(tiers)
    prices, named = _table(cost)
    truth = AcceptanceRecords.load(records)
    wanted, asker = _drafts(draft_tokens, prices, named, truth.draft_tokens)
    chosen = _cut(truth, wanted, asker)
    chosen = chosen.take(chosen.of(source, regime)) if source or regime else chosen
    planning = _planning(lag, calibration, chosen)
    sizes = list(dict.fromkeys(concurrency or _CONCURRENCY))
    steps = _tiers(prices, max(sizes), chosen.draft_tokens) if asked is None else asked
    # Captured steps that draft nothing are other graphs, with prices of their own.
    bare = _ladder(prices, "bare") if steps and prices.bare_curves else ()
    arms = list(dict.fromkeys(arm or arm_names(chosen.draft_tokens)))
    _say_setup(prices, chosen.header)
    times = step_times(prices, chosen, sizes, steps, bare, context)
    _say_doubts(prices, sizes, chosen.draft_tokens, times[0].context)
    results: dict[int, dict[str, ArmResult]] = {}
    with progress() as display:
        course = Course(display)
        for index, requests in enumerate(sizes, start=1):
            scene = Scene(chosen, prices, requests, steps, context, seed, warmup, tokens, bare)
            stage = course.stage(f"simulating {count_of(requests, 'request')}", index / len(sizes))
            results[requests] = run_scene(scene, arms, planning, stage)
    report = {
        "records": {
            "path": str(records or BUNDLED),
            "digest": truth.digest,
            "header": truth.header.as_dict(),
            "sequences": chosen.sequences,
            "positions": chosen.positions,
            "source": source or list(SOURCES),
            "regime": regime or list(REGIMES),
        },
        "draft_tokens": {"simulated": wanted, "recorded": truth.draft_tokens, "from": asker},
        "table": {
            "path": named,
            "fingerprint": dict(prices.fingerprint.pairs),
            "tiers": list(steps),
            "bare": list(bare),
            "words": table_in_words(prices, steps),
            "times": [one.as_dict() for one in times],
        },
        "planner": {
            "signal": planning.signal.name,
            "policy": planning.policy.name,
            "lag": lag,
            "calibration": None if calibration is None else str(calibration),
        },
        "warmup": warmup,
        "seed": seed,
        "context": context,
        "results": [
            {"concurrency": requests, "arms": {name: one.as_dict() for name, one in found.items()}}
            for requests, found in results.items()
        ],
    }
    if json:
        emit_json(report)
    else:
        _render(report, results)


def _table(given: Path | None) -> tuple[CostTable, str]:
    """Return the cost table and where it lies; any setup's will do, since nothing is run."""
    found = given
    if found is None:
        settings, _ = discover()
        found = settings.paths.cost_table
    if found is None:
        raise CostTableError(
            "there are no step times to simulate with",
            allowed="--table FILE, or ADAVERIFY_PATHS_COST_TABLE",
            remedy="measure them: adaverify profile --table table.json",
        )
    return CostTable.load(found, None), str(found)


def _drafts(asked: int | None, prices: CostTable, named: str, known: int) -> tuple[int, str]:
    """Return K and whose it is: the option's, that of settings which name one, the table's, the records'."""
    if asked is not None:
        return asked, "--draft-tokens"
    preset = discover()[0].engine
    if "draft_tokens" in preset.model_fields_set:
        return preset.draft_tokens, "ADAVERIFY_ENGINE_DRAFT_TOKENS"
    measured = dict(prices.fingerprint.pairs).get("draft_tokens", "")
    return (int(measured), f"step times {named}") if measured.isdecimal() else (known, "records")


def _cut(truth: AcceptanceRecords, wanted: int, asker: str) -> AcceptanceRecords:
    """Return the records of K = ``wanted``; says so where that is not all of them.

    Raises:
        RecordsError: nobody knows the fate of so many drafts; has both numbers.
    """
    try:
        chosen = truth.first(wanted)
    except RecordsError as error:
        known = truth.draft_tokens
        raise error.within(asker, f"pass --draft-tokens {known}, which were recorded") from error
    if wanted < truth.draft_tokens:
        note(f"K = {wanted} ({asker}): the first {wanted} of {truth.draft_tokens} recorded drafts are used")
    return chosen


def _planning(lag: int, option: Path | None, records: AcceptanceRecords) -> Planning:
    """Return what the settings in force make managers of; a calibration must be of what was recorded."""
    settings, plugins = discover_here()
    state = None
    calibration = option or settings.paths.calibration
    if calibration is not None:
        settings = replace(settings, paths=settings.paths.model_copy(update={"calibration": calibration}))
        limits = Limits(1, records.draft_tokens, max_model_len=1, page_size=1)
        header = records.header
        with naming_setting(option):
            settings = check_calibration(settings, plugins, limits, header.model, header.drafter)
            state = read_calibration(calibration).state
    planner, absent = settings.planner, plugins.not_loaded()
    return Planning(
        signal=contained(pick(plugins.signals(), "signal", planner.signal, absent)),
        policy=contained(pick(plugins.policies(), "policy", planner.policy, absent)),
        options=manager_options(planner, "adaptive"),
        lag=lag,
        calibration=state,
    )


def _ladder(prices: CostTable, name: str) -> tuple[int, ...]:
    """Return a ladder of the setup that the table was measured on; none where steps ran eagerly."""
    return ladder_of(dict(prices.fingerprint.pairs).get(name, "")) or ()


def _tiers(prices: CostTable, requests: int, draft_tokens: int) -> tuple[int, ...]:
    """Return what steps are padded to where the table was measured: captured sizes, a CPU's whole rows."""
    rows, here = dict(prices.fingerprint.pairs).get("rows", ""), f"{FEW},{ROWS}"
    if rows and rows != here:
        raise CostTableError(
            "the table was measured where rows are padded otherwise",
            arrived=rows,
            allowed=here,
            remedy="pass --tiers with the token counts that steps were padded to, or measure it again",
        )
    if rows:
        return row_tiers(requests, draft_tokens)
    return _ladder(prices, "ladder")


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        counts = (0,)
    if list(counts) != sorted(set(counts)) or any(not 1 <= count <= _MOST_TOKENS for count in counts):
        raise typer.BadParameter(
            f"{text!r} is no ladder; allowed: rising token counts with commas, such as 8,16,32, "
            f"of at most {_MOST_TOKENS}"
        )
    return counts


def _say_setup(prices: CostTable, header: RecordsHeader) -> None:
    """Say what the table was measured on, where that is not what was recorded."""
    facts = dict(prices.fingerprint.pairs)
    recorded = {
        "device": header.source.get("device_name"),
        "model": header.model,
        "drafter": header.drafter,
    }
    other = [
        f"{name} {facts[name]} (records: {value})"
        for name, value in recorded.items()
        if value is not None and facts.get(name) and facts[name] != str(value)
    ]
    if other:
        note(f"the table was measured on another setup than the records: {', '.join(other)}")
    measured = facts.get("draft_tokens", "")
    if measured and measured != str(header.draft_tokens):
        note(f"drafting {header.draft_tokens} is priced as the table has it, where K is {measured}")


def _say_doubts(prices: CostTable, sizes: list[int], draft_tokens: int, context: float) -> None:
    most = max(curve.requests for curve in prices.curves)
    beyond = [str(size) for size in sizes if size > most]
    if beyond:
        note(f"the table has {most} requests at most: {', '.join(beyond)} are priced as {most} are")
    tokens, needed = max(curve.tokens[-1] for curve in prices.curves), max(sizes) * (draft_tokens + 1)
    if needed > tokens:
        note(f"the table ends at {tokens} query tokens: up to {needed} are priced by its upper half's slope")
    lengths = [curve.context for curve in prices.curves]
    nearest = min(max(context, min(lengths)), max(lengths))
    if nearest != context:
        note(f"the table has KV lengths {span(lengths)}: {context:.0f} on average is priced as {nearest} is")


def _k_in_words(drafts: dict[str, Any]) -> str:
    whole = drafts["simulated"] == drafts["recorded"]
    return f"K = {drafts['simulated']}" + ("" if whole else f" of {drafts['recorded']} recorded")


def _render(report: dict[str, Any], results: dict[int, dict[str, ArmResult]]) -> None:
    records, planner = report["records"], report["planner"]
    header = records["header"]
    say(
        f"{header['model']}, drafter {header['drafter']}, {_k_in_words(report['draft_tokens'])}: "
        f"{records['positions']} positions of {records['sequences']} texts; "
        f"signal {planner['signal']}, policy {planner['policy']}"
    )
    say(f"Step times: {report['table']['path']}")
    say(report["table"]["words"])
    out().print()
    times = [
        (
            one["requests"],
            one["context"],
            *(1e3 * one[name] for name in ("plain", "full", "draft")),
            one["ground"],
        )
        for one in report["table"]["times"]
    ]
    heads = ("requests", "KV length", "no drafts", "all drafts", "drafting", "where from")
    out().print(table("Step times used, ms", heads, times))
    for requests, found in results.items():
        best = max(one.tokens_per_second for one in found.values())
        rows = [
            (
                name,
                one.tokens_per_second,
                f"{100 * one.tokens_per_second / best:.1f} %",
                1e3 * one.step_seconds,
                1e3 * one.token_seconds,
                one.accepted_length,
                one.mean_budget,
                None if one.wasted_share is None else f"{100 * one.wasted_share:.1f} %",
            )
            for name, one in found.items()
        ]
        columns = ("arm", "tokens/s", "of best", "ms/step", "ms/token", "length", "budget", "wasted")
        out().print()
        out().print(table(count_of(requests, "request"), columns, rows))
    out().print()
    say(
        "A step is whole, drafting included. Length: tokens a request and step. Budget: drafts verified in a "
        "step. Wasted: share not accepted.",
        "dim",
    )
