"""The probe ``deep-gemm``: a tiny problem on this device, its answer compared with plain torch on the CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from adaverify_contracts import Capability, KernelLevel, KernelReport, ProbeDescriptor

if TYPE_CHECKING:
    import torch

NAME = "deep-gemm"
# Lengths around a page and a split, and a padding row; the pages are handed out in reverse.
LENGTHS = (0, 1, 63, 64, 65, 255, 256, 257)
_HEADS, _DIM, _PAGE = 64, 128, 64
# deepgemm section 10: 1.3e-4 was measured, a misread tensor is off by far more.
TOLERANCE = 1e-3


def known_problem(tokens: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the tensors of a call on the CPU, without a schedule, and its masked answer [M x N, 320].

    Row m ends at LENGTHS[m]; with two tokens the earlier one sees one position less.
    """
    import torch

    from adaverify_metadata.paged_logits import pack_pages, paged_mqa_logits_reference

    rows, columns = len(LENGTHS), 5
    made = torch.Generator().manual_seed(20260629)
    ends = torch.tensor(LENGTHS, dtype=torch.int32)[:, None]
    lens = (ends - torch.arange(tokens - 1, -1, -1, dtype=torch.int32)).clamp(min=0)
    keys = torch.randn(rows * columns, _PAGE, _DIM, generator=made)
    q = torch.randn(rows, tokens, _HEADS, _DIM, generator=made).to(torch.float8_e4m3fn)
    call = {
        "q": q,
        "kv": pack_pages(keys),
        "weights": torch.rand(rows * tokens, _HEADS, generator=made) + 0.1,
        "row_lens": lens,
        "block_table": torch.arange(rows * columns - 1, -1, -1, dtype=torch.int32).view(rows, columns),
    }
    return call, paged_mqa_logits_reference(**call, max_context_len=columns * _PAGE)


def examine(module: Any, device: str) -> KernelReport:
    """Execute the known problem with one and two tokens a row, and report how far the library got.

    Args:
        module: the imported library, or anything with its functions.
        device: where to run.

    Returns ``EXECUTED`` when every row is right, else ``IMPORTED`` with what was wrong. Nothing raises.
    """
    version, file = str(getattr(module, "__version__", "")), str(getattr(module, "__file__", "") or "no file")
    try:
        wrong = _wrong_values(module, device)
    except Exception as error:  # noqa: BLE001 - whatever the library raises is the answer
        text = " ".join(str(error).split())[:300] or "no message"
        wrong = f"a call failed: {type(error).__name__}: {text}"
    if wrong:
        return KernelReport(NAME, version, KernelLevel.IMPORTED, f"{wrong} (loaded from {file})")
    from adaverify_sm90_flatten.deep_gemm.versions import known_version

    line = known_version(version)
    listed = "listed as verified" if line.verified else f"not listed as verified: {line.note}"
    reason = f"ran on this device and every row of paged MQA logits was right; {listed} (loaded from {file})"
    return KernelReport(NAME, version, KernelLevel.EXECUTED, reason)


def _wrong_values(module: Any, device: str) -> str:
    import torch

    from adaverify_metadata import schedule_tail_heavy
    from adaverify_metadata.paged_logits import relative_errors
    from adaverify_sm90_flatten.deep_gemm.adapter import PagedMqaLogits
    from adaverify_sm90_flatten.deep_gemm.checks import LogitsCall

    # Masked by torch, so that this report is about the library alone.
    adapter = PagedMqaLogits(
        module, heads=_HEADS, head_dim=_DIM, page_size=_PAGE, device=device, backend="torch"
    )
    for tokens in (1, 2):
        call, want = known_problem(tokens)
        here = {name: tensor.to(device) for name, tensor in call.items()}
        lens = here["row_lens"].clamp(min=1)
        ours = schedule_tail_heavy(lens, adapter.slots(tokens), adapter.known.contract.split)
        theirs = adapter.schedule(lens)
        if theirs.shape != ours.shape or not torch.equal(theirs.cpu(), ours.cpu()):
            return f"wrong schedule for {tokens} tokens a row: {_first_difference(theirs, ours)}"
        got = adapter(LogitsCall(**here, schedule=ours, max_context_len=want.shape[1])).cpu()
        errors = relative_errors(got, want)
        bad = (errors[:-1] > TOLERANCE).nonzero().flatten().tolist()
        if bad:
            lens_of_bad = call["row_lens"].flatten()[bad].tolist()
            worst = float(errors[:-1].max())
            return (
                f"wrong values for {tokens} tokens a row: relative error {worst:.1e}, "
                f"allowed {TOLERANCE:.0e}, in result rows {bad[:6]} of lengths {lens_of_bad[:6]}"
            )
    return ""


def _first_difference(theirs: torch.Tensor, ours: torch.Tensor) -> str:
    if theirs.shape != ours.shape:
        return f"shape {tuple(theirs.shape)}, expected {tuple(ours.shape)}"
    slot = int((theirs.cpu() != ours.cpu()).any(1).nonzero()[0])
    return f"slot {slot} starts at {theirs[slot].tolist()}, expected {ours[slot].tolist()}"


def _probe(facts: Capability) -> KernelReport:
    import torch

    from adaverify_sm90_flatten.deep_gemm.adapter import import_library

    del facts
    # Facts may be assumed; a binary for this chip must not run on another one.
    found = torch.cuda.get_device_capability() if torch.cuda.is_available() else None
    if found != (9, 0):
        reason = f"the device at hand has compute capability {found}, needs (9, 0)"
        return KernelReport(NAME, "", KernelLevel.ABSENT, reason)
    return examine(import_library(), "cuda")


DEEP_GEMM = ProbeDescriptor(NAME, ("cuda",), _probe, architectures=("sm90",), isolated_imports=("deep_gemm",))
