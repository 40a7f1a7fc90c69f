"""The probe ``deep-gemm-varlen``: a tiny ragged problem, its answer compared with plain torch on the CPU."""

from __future__ import annotations

from typing import Any

from adaverify_contracts import Capability, KernelLevel, KernelReport, ProbeDescriptor

NAME = "deep-gemm-varlen"
# (query tokens, KV length) of each request: runs of 1 to 5 rows, lengths around a page and a split.
REQUESTS = ((3, 300), (1, 1), (5, 65), (2, 385), (4, 257), (1, 64))
_HEADS, _DIM, _PAGE, _COLUMNS = 64, 128, 64, 7
TOLERANCES = {"float32": 1e-3, "bfloat16": 8e-3}
"""Largest relative error of a row (deepgemm section 10); a misread tensor is off by far more."""


def examine(module: Any, device: str) -> KernelReport:
    """Execute the known problem and report how far the library got. Nothing raises.

    Args:
        module: the imported library, or anything with its functions.
        device: where to run.
    """
    version, file = str(getattr(module, "__version__", "")), str(getattr(module, "__file__", "") or "no file")
    try:
        wrong = _wrong_values(module, device)
    except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
        text = " ".join(str(error).split())[:300] or "no message"
        wrong = f"a call failed: {type(error).__name__}: {text}"
    level = KernelLevel.IMPORTED if wrong else KernelLevel.EXECUTED
    reason = wrong or f"ran on {device} and every row of ragged paged MQA logits was right"
    return KernelReport(NAME, version, level, f"{reason} (loaded from {file})")


def _wrong_values(module: Any, device: str) -> str:
    import torch

    from adaverify_metadata import pack_pages, paged_mqa_logits_reference, relative_errors
    from adaverify_sm100_varlen.deep_gemm.adapter import PagedMqaLogits
    from adaverify_sm100_varlen.deep_gemm.checks import LogitsCall
    from adaverify_sm100_varlen.pages import pack_micro_scaled_pages, plain_pages
    from adaverify_sm100_varlen.schedule import reference_schedule

    options = {"heads": _HEADS, "head_dim": _DIM, "page_size": _PAGE, "device": device, "max_rows": 64}
    adapter = PagedMqaLogits(module, **options, backend="torch")  # type: ignore[arg-type]
    contract = adapter.known.contract
    made = torch.Generator().manual_seed(20260629)
    ids = [request for request, (tokens, _) in enumerate(REQUESTS) for _ in range(tokens)]
    lens = [length - tokens + 1 + step for tokens, length in REQUESTS for step in range(tokens)]
    rows = len(ids) + 1
    indices = torch.tensor([*ids, rows], dtype=torch.int32)
    row_lens = torch.tensor([*lens, 0], dtype=torch.int32).clamp(min=0)[:, None]
    pages = _COLUMNS * len(REQUESTS)
    keys = torch.randn(pages, _PAGE, _DIM, generator=made)
    kv = (pack_micro_scaled_pages if contract.micro_scales else pack_pages)(keys)
    by_request = torch.arange(pages - 1, -1, -1, dtype=torch.int32).view(-1, _COLUMNS)
    table = by_request[torch.tensor([*ids, 0])]
    q = torch.randn(rows, 1, _HEADS, _DIM, generator=made).to(torch.float8_e4m3fn)
    weights = (torch.rand(rows, _HEADS, generator=made) + 0.1).to(getattr(torch, contract.value_dtype))
    plain = plain_pages(kv) if contract.micro_scales else kv
    width = _COLUMNS * _PAGE
    want = paged_mqa_logits_reference(q, plain, weights.float(), row_lens, table, width)
    ours = reference_schedule(contract, row_lens.clamp(min=1), adapter.slots, indices)
    theirs = adapter.schedule(row_lens.clamp(min=1).to(device), indices.to(device)).cpu()
    if theirs.shape != ours.shape or not torch.equal(theirs, ours):
        return "wrong schedule: it differs from the one its version builds"
    tensors = (q, kv, weights, row_lens, table, indices, ours)
    call = LogitsCall(*(tensor.to(device) for tensor in tensors), width)  # type: ignore[call-arg, arg-type]
    got = adapter(call).float().cpu()
    errors, allowed = relative_errors(got, want)[:-1], TOLERANCES[contract.value_dtype]
    bad = (errors > allowed).nonzero().flatten().tolist()
    if bad:
        worst = f"{float(errors.max()):.1e}, allowed {allowed:.0e}"
        return f"wrong values: relative error {worst}, in result rows {bad[:6]}"
    return ""


def _probe(facts: Capability) -> KernelReport:
    import torch

    del facts
    # Facts may be assumed; a binary for this chip must not run on another one.
    found = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    if found not in ((10, 0), (10, 3)):
        reason = f"the device at hand has compute capability {found}, needs (10, 0) or (10, 3)"
        return KernelReport(NAME, "", KernelLevel.ABSENT, reason)
    import deep_gemm

    return examine(deep_gemm, "cuda")


DEEP_GEMM = ProbeDescriptor(
    NAME, ("cuda",), _probe, architectures=("sm100", "sm103"), isolated_imports=("deep_gemm",)
)
