"""The probe ``deep-gemm-varlen``: a tiny ragged problem, its answer compared with plain torch on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaverify_contracts import Capability, KernelLevel, KernelReport, ProbeDescriptor

if TYPE_CHECKING:
    import torch

    from adaverify_sm100_varlen.deep_gemm.versions import LogitsContract

NAME = "deep-gemm-varlen"
# (query tokens, KV length) of each request: runs of 1 to 5 rows, lengths around a page and a split.
REQUESTS = ((3, 300), (1, 1), (5, 65), (2, 385), (4, 257), (1, 64))
_HEADS, _DIM, _PAGE, _COLUMNS = 64, 128, 64, 7
TOLERANCES = {"float32": 1e-3, "bfloat16": 8e-3}
"""Largest relative error of a row (deepgemm section 10); a misread tensor is off by far more."""


def known_problem(contract: LogitsContract) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the tensors of a call on the CPU, without a schedule, and its masked answer float32 [M, 448].

    The rows of REQUESTS, ascending inside each, and one padding row; pages are handed out in reverse.
    """
    import torch

    from adaverify_metadata import pack_pages, paged_mqa_logits_reference
    from adaverify_sm100_varlen.pages import pack_micro_scaled_pages, plain_pages

    made = torch.Generator().manual_seed(20260629)
    ids = [request for request, (tokens, _) in enumerate(REQUESTS) for _ in range(tokens)]
    lens = [length - tokens + 1 + step for tokens, length in REQUESTS for step in range(tokens)]
    rows = len(ids) + 1
    row_lens = torch.tensor([*lens, 0], dtype=torch.int32).clamp(min=0)[:, None]
    pages = _COLUMNS * len(REQUESTS)
    keys = torch.randn(pages, _PAGE, _DIM, generator=made)
    kv = (pack_micro_scaled_pages if contract.micro_scales else pack_pages)(keys)
    by_request = torch.arange(pages - 1, -1, -1, dtype=torch.int32).view(-1, _COLUMNS)
    table = by_request[torch.tensor([*ids, 0])]
    q = torch.randn(rows, 1, _HEADS, _DIM, generator=made).to(torch.float8_e4m3fn)
    weights = (torch.rand(rows, _HEADS, generator=made) + 0.1).to(getattr(torch, contract.value_dtype))
    plain = plain_pages(kv) if contract.micro_scales else kv
    want = paged_mqa_logits_reference(q, plain, weights.float(), row_lens, table, _COLUMNS * _PAGE)
    call = {
        "q": q,
        "kv": kv,
        "weights": weights,
        "row_lens": row_lens,
        "block_table": table,
        "request_indices": torch.tensor([*ids, rows], dtype=torch.int32),
    }
    return call, want


def examine(module: Any, device: str) -> KernelReport:
    """Execute the known problem and report how far the library got. Nothing raises.

    Args:
        module: the imported library, or anything with its functions.
        device: where to run.

    Returns ``EXECUTED`` when every row is right, else ``IMPORTED`` with what was wrong.
    """
    version, file = str(getattr(module, "__version__", "")), str(getattr(module, "__file__", "") or "no file")
    try:
        wrong = _wrong_values(module, device)
    except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
        text = " ".join(str(error).split())[:300] or "no message"
        wrong = f"a call failed: {type(error).__name__}: {text}"
    if wrong:
        return KernelReport(NAME, version, KernelLevel.IMPORTED, f"{wrong} (loaded from {file})")
    from adaverify_sm100_varlen.deep_gemm.versions import known_version

    line = known_version(version)
    listed = "listed as verified"
    if line is not None and not line.verified:
        listed = f"not listed as verified: {line.note}"
    reason = f"ran on {device} and every row of ragged paged MQA logits was right; {listed}"
    return KernelReport(NAME, version, KernelLevel.EXECUTED, f"{reason} (loaded from {file})")


def _wrong_values(module: Any, device: str) -> str:
    from adaverify_metadata import relative_errors
    from adaverify_sm100_varlen.deep_gemm.adapter import PagedMqaLogits
    from adaverify_sm100_varlen.deep_gemm.checks import LogitsCall
    from adaverify_sm100_varlen.schedule import reference_schedule

    # Masked by torch, so that this report is about the library alone.
    options = {"heads": _HEADS, "head_dim": _DIM, "page_size": _PAGE, "device": device, "max_rows": 64}
    adapter = PagedMqaLogits(module, **options, backend="torch")  # type: ignore[arg-type]
    contract = adapter.known.contract
    call, want = known_problem(contract)
    lens, indices = call["row_lens"].clamp(min=1), call["request_indices"]
    ours = reference_schedule(contract, lens, adapter.slots, indices)
    theirs = adapter.schedule(lens.to(device), indices.to(device)).cpu()
    if theirs.shape != ours.shape or bool((theirs != ours).any()):
        return f"wrong schedule: {_first_difference(theirs, ours)}"
    here = {name: tensor.to(device) for name, tensor in call.items()}
    got = adapter(LogitsCall(**here, schedule=ours.to(device), max_context_len=want.shape[1])).float().cpu()
    errors, allowed = relative_errors(got, want)[:-1], TOLERANCES[contract.value_dtype]
    bad = (errors > allowed).nonzero().flatten().tolist()
    if bad:
        lens_of_bad = call["row_lens"].flatten()[bad].tolist()
        return (
            f"wrong values: relative error {float(errors.max()):.1e}, allowed {allowed:.0e}, "
            f"in result rows {bad[:6]} of lengths {lens_of_bad[:6]}"
        )
    return ""


def _first_difference(theirs: torch.Tensor, ours: torch.Tensor) -> str:
    if theirs.shape != ours.shape:
        return f"shape {tuple(theirs.shape)}, expected {tuple(ours.shape)}"
    slot = int((theirs != ours).any(1).nonzero()[0])
    return f"slot {slot} starts at {theirs[slot].tolist()}, expected {ours[slot].tolist()}"


def _probe(facts: Capability) -> KernelReport:
    import torch

    from adaverify_sm100_varlen.deep_gemm.adapter import import_library

    del facts
    # Facts may be assumed; a binary for this chip must not run on another one.
    found = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    if found not in ((10, 0), (10, 3)):
        reason = f"the device at hand has compute capability {found}, needs (10, 0) or (10, 3)"
        return KernelReport(NAME, "", KernelLevel.ABSENT, reason)
    return examine(import_library(), "cuda")


DEEP_GEMM = ProbeDescriptor(
    NAME, ("cuda",), _probe, architectures=("sm100", "sm103"), isolated_imports=("deep_gemm",)
)
