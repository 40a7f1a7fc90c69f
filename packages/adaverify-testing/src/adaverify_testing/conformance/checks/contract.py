"""Declarations, types and refusals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from adaverify_contracts import DecodeBatch, DecodeRowBuilder, DecodeRows, LayoutError, Limits
from adaverify_testing.conformance.batches import Case
from adaverify_testing.conformance.blame import told
from adaverify_testing.conformance.report import READ, CheckFailed, CheckSkipped
from adaverify_testing.conformance.subject import Subject, views
from adaverify_testing.poisoning import poison

_INPUTS = ("query_start_loc", "seq_lens", "block_table")


def requirements(subject: Subject) -> str:
    """The device meets what the strategy requires."""
    if subject.unmet:
        listing = "\n".join(f"  {reason}" for reason in subject.unmet)
        raise CheckFailed(
            f"strategy {subject.descriptor.name!r} cannot run here:\n{listing}\n  to do: run on the device "
            "it is for (--adaverify-device cuda), or --adaverify-assume WORD with an architecture's word"
        )
    assumed = "assumed" if subject.capability.assumed else "probed"
    return f"{subject.capability.architecture}, {assumed}"


def allocation(subject: Subject) -> str:
    """The factory returns a builder that carries the strategy's name and owns static tensors."""
    if subject.unmet:
        raise CheckSkipped("not run: the check 'requirements' failed")
    refused = {name: value for name, value in subject.served.items() if not isinstance(value, Limits)}
    for name, limits, builder in subject.builders():
        if builder.strategy != subject.descriptor.name:
            raise CheckFailed(
                f"the builder calls itself {builder.strategy!r}, the descriptor {subject.descriptor.name!r}"
                f"\n  contract: DecodeRowBuilder.strategy is the name of the strategy\n{READ}"
            )
        _require_own_storage(subject, builder, name, limits)
    return "; ".join(f"{name} not served: {why}" for name, why in refused.items())


def _require_own_storage(subject: Subject, builder: DecodeRowBuilder, name: str, limits: Limits) -> None:
    """Require that a second allocation shares nothing with the first that a build writes."""
    other = subject.descriptor.allocate(limits, subject.device, subject.capability)
    words = "" if other is not builder else "the same builder"
    if not words:
        mine = {tensor.untyped_storage().data_ptr() for tensor in builder.buffers.values()} - {0}
        shared = {k: t for k, t in other.buffers.items() if t.untyped_storage().data_ptr() in mine}
        words = ", ".join(f"buffers[{key!r}]" for key in _written(subject, other, shared, limits))
    if words:
        raise CheckFailed(
            f"two allocations share {words}\n  limits {name!r}: {limits}\n  contract: StrategyFactory makes "
            f"the buffers of one builder; a second one must not overwrite the rows of the first\n{READ}"
        )


def _written(
    subject: Subject, builder: DecodeRowBuilder, buffers: Mapping[str, torch.Tensor], limits: Limits
) -> list[str]:
    """Return which buffers a few builds write to; constants may be shared."""
    found: dict[str, None] = {}
    for case in subject.cases(limits, count=2)[-2:] if buffers else ():
        before = {key: poison(tensor).clone() for key, tensor in buffers.items()}
        try:
            builder.build(case.batch(limits, subject.device))
        except Exception:  # noqa: BLE001 - another check builds too and says what was raised
            return list(buffers)
        found.update(dict.fromkeys(key for key, old in before.items() if not torch.equal(old, buffers[key])))
    return list(found)


def dtypes(subject: Subject) -> None:
    """Every tensor is int32 on the device, in the shape that the contract names."""
    for name, limits, builder in subject.builders():
        kinds = {key: (tensor.dtype, tuple(tensor.shape)) for key, tensor in builder.buffers.items()}
        for case in subject.cases(limits, count=2)[:8]:
            rows = subject.build_case(builder, case, limits)
            if rows.strategy != subject.descriptor.name:
                raise CheckFailed(f"the rows call themselves {rows.strategy!r}\n{READ}")
            for field, tensor in views(rows).items():
                _require_kind(rows, field, tensor, case, limits, subject.device)
        for key, tensor in builder.buffers.items():
            if kinds[key] != (tensor.dtype, tuple(tensor.shape)):
                now = (tensor.dtype, tuple(tensor.shape))
                raise CheckFailed(
                    f"buffers[{key!r}] was {kinds[key]} and is {now} after builds (limits {name!r})\n{READ}"
                )


def _require_kind(
    rows: DecodeRows, field: str, tensor: torch.Tensor, case: Case, limits: Limits, device: torch.device
) -> None:
    shape = tuple(tensor.shape)
    rows_first = field not in ("token_slot", "schedule")
    expected: dict[str, object] = {
        "token_slot": (case.padded_tokens,),
        "block_table": (rows.rows, limits.table_width),
        "row_request": (rows.rows,),
        "request_indices": (rows.rows,),
    }
    wanted = expected.get(field, (rows.rows, rows.tokens_per_row) if rows_first else shape)
    problem = ""
    if tensor.dtype is not torch.int32:
        problem = f"dtype {tensor.dtype}, the contract says int32"
    elif shape != wanted or (field == "schedule" and (len(shape) != 2 or shape[1] != 2)):
        problem = f"shape {shape}, the contract says {'[slots + 1, 2]' if field == 'schedule' else wanted}"
    elif tensor.device.type != device.type:
        problem = f"device {tensor.device}, the batch is on {device}"
    elif shape and shape[-1] > 1 and tensor.stride(-1) != 1:
        problem = f"strides {tensor.stride()}, the last dimension is dense"
    if problem:
        raise CheckFailed(f"DecodeRows.{field} has {problem}\n  {case.describe()}\n{READ}")


def inputs_unchanged(subject: Subject) -> str:
    """A build only reads its batch: other readers come after it."""
    count = 0
    for name, limits, builder in subject.builders():
        for case in subject.cases(limits, count=6, seed=6):
            batch = case.batch(limits, subject.device)
            given = {field: getattr(batch, field) for field in _INPUTS}
            before = {field: (tensor.clone(), tensor.data_ptr()) for field, tensor in given.items()}
            subject.build(builder, batch, case.describe())
            for field, (old, address) in before.items():
                now = getattr(batch, field)
                if now.data_ptr() == address and torch.equal(old, now):
                    continue
                raise CheckFailed(
                    f"build changes its input DecodeBatch.{field}: {old.tolist()}, afterwards {now.tolist()}"
                    f"\n  {case.describe()}\n  limits {name!r}: {limits}\n  contract: DecodeRowBuilder.build "
                    f"never writes to the batch; others read it after it\n{READ}"
                )
            count += 1
    return f"{count} batches over {subject.effort()}"


def refusals(subject: Subject) -> None:
    """A batch outside the limits, on another device or of a kind not served is a LayoutError."""
    for name, limits, builder in subject.builders():
        for words, make in _wrong_batches(limits, subject):
            try:
                builder.build(make())
            except LayoutError as error:
                _require_words(error, words)
                continue
            except Exception as error:
                raise CheckFailed(_refusal(words, f"raised {told(error)}", name, limits)) from error
            raise CheckFailed(_refusal(words, "was built", name, limits))


def _wrong_batches(limits: Limits, subject: Subject) -> list[tuple[str, Callable[[], DecodeBatch]]]:
    device, width = subject.device, 1 if subject.uniform else None
    elsewhere = torch.device("meta" if device.type == "cpu" else "cpu")

    def plain(requests: int, where: torch.device, columns: int, query: int = 1) -> DecodeBatch:
        tokens = requests * query
        starts = torch.arange(0, tokens + 1, query, dtype=torch.int32)
        return DecodeBatch(
            starts.to(where),
            torch.full((requests,), query, dtype=torch.int32).to(where),
            torch.zeros(requests, columns, dtype=torch.int32).to(where),
            requests,
            tokens,
            tokens,
            query,
            None if width is None else query,
        )

    most, columns, block = limits.max_requests, limits.table_width, limits.max_query_len
    wrong: list[tuple[str, Callable[[], DecodeBatch]]] = [
        (f"{most + 1} requests where {most} fit", lambda: plain(most + 1, device, columns)),
        (f"{columns + 1} table columns where there are {columns}", lambda: plain(1, device, columns + 1)),
        (
            f"{(most + 1) * block} tokens of {most + 1} requests",
            lambda: plain(most + 1, device, columns, block),
        ),
        (f"a batch on {elsewhere}", lambda: plain(1, elsewhere, columns)),
    ]
    if columns > 1:
        text = f"{columns - 1} table columns where there are {columns}"
        wrong.append((text, lambda: plain(1, device, columns - 1)))
    if subject.uniform:
        wrong.append(
            (f"{block + 1} tokens a request where {block} fit", lambda: plain(1, device, columns, block + 1))
        )
        ragged = Case("ragged", (1,), (1,), 1, 1)
        wrong.append(("a ragged batch for a uniform strategy", lambda: ragged.batch(limits, device)))
    else:
        past = Case("too many tokens", (1,), (1,), limits.max_tokens + 1, 1)
        wrong.append((f"{past.padded_tokens} padded tokens", lambda: past.batch(limits, device)))
    return wrong


def _require_words(error: LayoutError, words: str) -> None:
    if error.arrived is None and error.allowed is None:
        raise CheckFailed(
            f"the LayoutError for {words} says neither what arrived nor what is allowed: {error}\n"
            "  contract: errors carry problem, arrived, allowed and remedy"
        )


def _refusal(words: str, happened: str, name: str, limits: Limits) -> str:
    return (
        f"{words}: {happened}, expected LayoutError\n  limits {name!r}: {limits}\n"
        f"  contract: DecodeRowBuilder.build raises LayoutError for a batch that does not fit\n{READ}"
    )
