"""What the bridge touches in vLLM, with the signatures it was written against.

Facts about vLLM 0.33. A signature is compared by names, kinds and defaults; annotations are spelt differently
by different Python versions and fix nothing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Releases, major and minor, whose seams these are: a release is added after its contract tests have passed.
SUPPORTED = ("0.33",)

RUNNER = "vllm.v1.worker.gpu.model_runner"
ADAPTIVE = "vllm.v1.worker.gpu.spec_decode.adaptive_verification"
INDEXER = "vllm.v1.attention.backends.mla.indexer"
STATES = "vllm.v1.worker.gpu.states"
TIMING = "vllm.v1.worker.gpu.async_utils"
BATCH = "vllm.v1.worker.gpu.input_batch"
GRAPHS = "vllm.v1.worker.gpu.cudagraph_utils"
RANKS = "vllm.distributed.parallel_state"

FACTORY = "maybe_create_adaptive_verification_manager"
BUILDER = "DeepseekV32IndexerMetadataBuilder"
PREPARE = "_prepare_decode_tensors"

# All that the model runner calls on the object that the factory returns.
METHODS = frozenset(
    (
        "add_request",
        "batches_to_profile",
        "compact_batch",
        "get_num_tokens",
        "reallocate_drafts",
        "record_confidences",
        "set_initial_cost_curves",
    )
)


@dataclass(frozen=True, slots=True)
class Seam:
    """One thing of vLLM's and the form it must have.

    Attributes:
        module: where it lives.
        name: dotted name in the module.
        form: its signature without annotations, the fields of a dataclass, or the methods used.
        read: returns the form that is there.
    """

    module: str
    name: str
    form: str
    read: Callable[[Any], str]

    @property
    def where(self) -> str:
        """Module and name."""
        return f"{self.module}.{self.name}" if self.name else self.module


@dataclass(frozen=True, slots=True)
class Found:
    """One seam as it is here.

    Attributes:
        seam: what was looked for.
        form: the form that is there, or why there is none.
    """

    seam: Seam
    form: str

    @property
    def fits(self) -> bool:
        """Whether it is what the bridge was written against."""
        return self.form == self.seam.form


def signature(function: Any) -> str:
    """Return a signature without annotations."""
    found = inspect.signature(function)
    bare = [part.replace(annotation=inspect.Parameter.empty) for part in found.parameters.values()]
    return str(found.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def fields_of(kind: Any) -> str:
    """Return the names of a dataclass's fields, in order."""
    return ", ".join(kind.__dataclass_fields__)


def has_fields(*names: str) -> Callable[[Any], str]:
    """Return a reader of which of these fields a dataclass has."""
    return lambda kind: ", ".join(name for name in names if name in kind.__dataclass_fields__)


def methods_used(module: Any) -> str:
    """Return the methods that a module's source calls on the manager, sorted."""
    called = re.findall(r"\badaptive_verification\.(\w+)\(", inspect.getsource(module))
    return ", ".join(sorted(set(called)))


def _signature(module: str, name: str, form: str) -> Seam:
    return Seam(module, name, form, signature)


_MANAGER = "AdaptiveVerificationManager"
_FACTORY_FORM = (
    "(*, enable_adaptive_verification, attn_groups, req_states, query_start_loc, num_bonus_tokens, "
    "max_total_logits, vllm_config, target_layer_names=None, additional_attn_cg_support=None, "
    "copy_admitted_drafts_to_host=False)"
)

SEAMS = (
    Seam(RUNNER, "", ", ".join(sorted(METHODS)), methods_used),
    _signature(RUNNER, FACTORY, _FACTORY_FORM),
    _signature(ADAPTIVE, FACTORY, _FACTORY_FORM),
    _signature(ADAPTIVE, f"{_MANAGER}.add_request", "(self, req_idx)"),
    _signature(ADAPTIVE, f"{_MANAGER}.batches_to_profile", "(self, capture_sizes)"),
    _signature(ADAPTIVE, f"{_MANAGER}.set_initial_cost_curves", "(self, samples)"),
    _signature(ADAPTIVE, f"{_MANAGER}.get_num_tokens", "(self, num_tokens_per_req, draft_tokens)"),
    _signature(
        ADAPTIVE,
        f"{_MANAGER}.compact_batch",
        "(self, num_draft_tokens_per_req, num_scheduled_tokens, cu_num_logits_np)",
    ),
    _signature(ADAPTIVE, f"{_MANAGER}.reallocate_drafts", "(self, req_ids, idx_mapping)"),
    _signature(ADAPTIVE, f"{_MANAGER}.record_confidences", "(self, confidence_probs, input_batch)"),
    _signature(ADAPTIVE, "AdmittedDraftCounts.__init__", "(self, cpu, event)"),
    _signature(
        STATES,
        "RequestState.__init__",
        "(self, max_num_reqs, max_model_len, max_num_batched_tokens, num_speculative_steps, vocab_size, "
        "device, num_prefill_lookahead=1, use_dense_all_token_ids=False)",
    ),
    _signature(
        STATES,
        "RequestState.add_request",
        "(self, req_id, prompt_len, all_token_ids, num_computed_tokens, max_tokens)",
    ),
    Seam(
        TIMING,
        "StepTimingSample",
        "forward_ms, drafter_ms, num_target_tokens, num_reqs, full_cudagraph",
        fields_of,
    ),
    Seam(
        BATCH,
        "InputBatch",
        "num_reqs, idx_mapping, idx_mapping_np",
        has_fields("num_reqs", "idx_mapping", "idx_mapping_np"),
    ),
    _signature(GRAPHS, "ModelCudaGraphManager.captured_token_counts", "(self)"),
    _signature(RANKS, "get_tp_group", "()"),
    _signature(RANKS, "GroupCoordinator.broadcast_object", "(self, obj=None, src=0)"),
)

ROW_SEAMS = (
    _signature(
        INDEXER,
        f"{BUILDER}.{PREPARE}",
        "(self, seq_lens, block_table, decode_lens, decode_lens_cpu, query_start_loc, num_decodes, "
        "num_decode_tokens, use_native, next_n, max_decode_len)",
    ),
)


def vllm_version() -> str | None:
    """Return the version of the installed vLLM, None without one."""
    try:
        return version("vllm")
    except PackageNotFoundError:
        return None


def supports(release: str) -> bool:
    """Return whether a vLLM version is one that the seams were written against."""
    return ".".join(release.split(".")[:2]) in SUPPORTED


def has_runner() -> bool:
    """Return whether vLLM has the module that is watched for; looks for its file and imports nothing new."""
    package, *folders, name = RUNNER.split(".")
    spec = find_spec(package)
    roots = (spec.submodule_search_locations or ()) if spec is not None else ()
    return any(True for root in roots for _ in Path(root, *folders).glob(f"{name}.*"))


def look(seams: Iterable[Seam]) -> tuple[Found, ...]:
    """Return each seam as it is here; imports the modules they live in."""
    return tuple(Found(seam, _form(seam)) for seam in seams)


def _form(seam: Seam) -> str:
    try:
        module = import_module(seam.module)
        thing = reduce(getattr, seam.name.split("."), module) if seam.name else module
        return seam.read(thing)
    except Exception as error:  # noqa: BLE001 - whatever a changed vLLM raises is what differs
        return f"{type(error).__name__}: {error}"


def differences(found: Iterable[Found]) -> tuple[str, ...]:
    """Return what differs, in words, one sentence a seam."""
    return tuple(
        f"{item.seam.where} is {item.form!r}, expected {item.seam.form!r}" for item in found if not item.fits
    )
