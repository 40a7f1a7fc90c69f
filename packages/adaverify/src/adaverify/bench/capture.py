"""What capturing costs: the ladder for ragged batches beside the one for full batches only."""

from __future__ import annotations

import gc
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

from adaverify.bench.rows import require_equal
from adaverify.bench.timing import sample
from adaverify_contracts import (
    BenchmarkCell,
    BenchmarkColumn,
    BenchmarkOptions,
    BenchmarkResult,
    DecodeBatch,
    GraphBackend,
    GraphKey,
    GraphSupport,
    Limits,
    WrongValueError,
)
from adaverify_graphs import (
    BufferSet,
    CaptureReport,
    CudaGraphBackend,
    EagerBackend,
    GraphCache,
    capture_query_lens,
    choose_ladder,
)
from adaverify_metadata import FlattenRowBuilder, RowBuilder, UniformRowBuilder, flatten_rows, uniform_rows

K = 7
PAGE = 64
MODEL_LEN = 8192
REQUESTS = (64,)
# The shape of SmolLM2-135M; four of its thirty layers, since every layer is captured alike.
HIDDEN, INNER, LAYERS = 576, 1536, 4
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
ARMS = ("adaptive", "fixed")


def run(options: BenchmarkOptions) -> BenchmarkResult:
    """Check replays of both ladders, then capture them in turn, each round in a fresh pool."""
    sizes = options.requests or REQUESTS
    rows: list[tuple[BenchmarkCell, ...]] = []
    for number, requests in enumerate(sizes):
        arms = {name: Arm.make(options, requests, name) for name in ARMS}
        total = options.repeat + 1
        for name, arm in arms.items():
            options.progress(number * total, len(sizes) * total, f"checking the {name} ladder of {requests}")
            arm.check(options)
        reports: dict[str, list[CaptureReport]] = {name: [] for name in ARMS}
        for turn in range(options.repeat):
            options.progress(number * total + 1 + turn, len(sizes) * total, f"capturing for {requests}")
            for name in ARMS if turn % 2 else reversed(ARMS):
                reports[name].append(arms[name].capture()[1])
        rows += _rows(requests, reports)
    return BenchmarkResult(
        columns=(
            BenchmarkColumn("requests"),
            BenchmarkColumn("variant"),
            BenchmarkColumn("graphs"),
            BenchmarkColumn("seconds", "s"),
            BenchmarkColumn("seconds_over_fixed", "adaptive / fixed"),
            BenchmarkColumn("pool_bytes", "bytes"),
            BenchmarkColumn("bytes_over_fixed", "adaptive / fixed"),
            BenchmarkColumn("seconds_low", "s", shown=False),
            BenchmarkColumn("seconds_high", "s", shown=False),
        ),
        rows=tuple(rows),
        checks=(
            (
                "the smallest, middle and largest graph of both ladders, replayed with other lengths than "
                "they were captured with, give the reference's rows and the eager step's values"
            ),
        ),
        data=f"a stand-in step of row building and {LAYERS} layers of matrix products {HIDDEN} x {INNER}, "
        f"K {K}, page {PAGE}, largest graph requests x {K + 1} tokens",
        cache="warm: the check compiled kernels and loaded libraries; each round captures into a fresh "
        "pool, and the arm that goes first changes every round",
        notes=()
        if options.capability.device_type != "cpu"
        else ("a CPU captures nothing: each size is run once and kept, and no bytes are held",),
    )


def _rows(requests: int, reports: dict[str, list[CaptureReport]]) -> list[tuple[BenchmarkCell, ...]]:
    seconds = {name: sample([one.seconds for one in found]) for name, found in reports.items()}
    held = {name: sorted(one.pool_bytes for one in found)[len(found) // 2] for name, found in reports.items()}
    rows: list[tuple[BenchmarkCell, ...]] = []
    for name, found in reports.items():
        ours = name != "fixed"
        taken = seconds[name]
        longer = taken.median / seconds["fixed"].median if ours and seconds["fixed"].median else None
        larger = held[name] / held["fixed"] if ours and held["fixed"] else None
        rows.append(
            (
                requests,
                name,
                len(found[-1].captured),
                taken.median,
                None if longer is None else round(longer, 4),
                held[name],
                None if larger is None else round(larger, 4),
                taken.low,
                taken.high,
            )
        )
    return rows


@dataclass(frozen=True)
class Arm:
    """One ladder with everything its steps read."""

    name: str
    limits: Limits
    keys: tuple[GraphKey, ...]
    mode: GraphSupport
    builder: RowBuilder
    start: torch.Tensor
    lens: torch.Tensor
    table: torch.Tensor
    hidden: torch.Tensor
    weights: tuple[tuple[torch.Tensor, torch.Tensor], ...]

    @classmethod
    def make(cls, options: BenchmarkOptions, requests: int, name: str) -> Arm:
        """Return the arm ``name`` for the largest batch of ``requests``."""
        limits = Limits(requests, K, MODEL_LEN, PAGE)
        device = options.device
        backend: Literal["torch", "triton"] = "torch" if device.startswith("cpu") else "triton"
        keys = choose_ladder(limits).keys(limits)
        mode, kind = GraphSupport.VARLEN_DECODE, FlattenRowBuilder
        builder: RowBuilder
        if name == "fixed":
            longest, width = limits.max_query_len, limits.table_width
            sizes = range(longest, limits.max_tokens + 1, longest)
            keys = tuple(GraphKey(tokens, tokens // longest, longest, width) for tokens in sizes)
            mode = GraphSupport.UNIFORM_BATCH
            builder = UniformRowBuilder("uniform", limits, device, backend=backend)
        else:
            builder = kind("flatten", limits, device, backend=backend)
        dtype = torch.float32 if device.startswith("cpu") else torch.bfloat16
        made = torch.Generator().manual_seed(0)

        def tensor(*shape: int, scale: float = 1.0) -> torch.Tensor:
            return (torch.randn(*shape, generator=made) * scale).to(device, dtype)

        layers = tuple(
            (tensor(HIDDEN, INNER, scale=HIDDEN**-0.5), tensor(INNER, HIDDEN, scale=INNER**-0.5))
            for _ in range(LAYERS)
        )
        table = torch.randint(0, 2**20, (requests, limits.table_width), generator=made, dtype=torch.int32)
        return cls(
            name=name,
            limits=limits,
            keys=keys,
            mode=mode,
            builder=builder,
            start=torch.zeros(requests + 1, dtype=torch.int32, device=device),
            lens=torch.zeros(requests, dtype=torch.int32, device=device),
            table=table.to(device),
            hidden=tensor(limits.max_tokens, HIDDEN),
            weights=layers,
        )

    def batch(self, key: GraphKey) -> DecodeBatch:
        """Return the batch of one size over the static tensors."""
        return DecodeBatch(
            query_start_loc=self.start[: key.requests + 1],
            seq_lens=self.lens[: key.requests],
            block_table=self.table[: key.requests],
            num_requests=key.requests,
            num_tokens=key.tokens,
            padded_tokens=key.tokens,
            max_query_len=key.max_query_len,
            uniform_query_len=key.max_query_len if self.mode is GraphSupport.UNIFORM_BATCH else None,
        )

    def fill(self, key: GraphKey, seed: int) -> None:
        """Write valid lengths of one size; every seed is another order and other KV lengths."""
        draw = random.Random(seed)
        query = list(capture_query_lens(key.tokens, key.requests, K))
        draw.shuffle(query)
        lens = [draw.randint(K + 1, MODEL_LEN) for _ in query]
        self.start[: key.requests + 1].copy_(torch.tensor([0, *query]).cumsum(0).int())
        self.lens[: key.requests].copy_(torch.tensor(lens, dtype=torch.int32))

    def make_run(self, key: GraphKey) -> Callable[[], Any]:
        """Return the stand-in step of one size."""
        self.fill(key, 0)
        batch = self.batch(key)
        tokens = self.hidden[: key.tokens]

        def step() -> Any:
            rows = self.builder.build(batch)
            value = tokens
            for up, down in self.weights:
                value = value + torch.nn.functional.silu(value @ up) @ down
            return rows, value

        return step

    def capture(self) -> tuple[GraphCache, CaptureReport]:
        """Capture the whole ladder into a fresh pool."""
        gc.collect()
        backend: GraphBackend = EagerBackend("cpu")
        if self.start.device.type == "cuda":
            torch.cuda.empty_cache()
            backend = CudaGraphBackend(self.start.device)
        buffers = BufferSet({"start": self.start, "lens": self.lens, "table": self.table})
        cache = GraphCache(backend, self.limits, buffers=buffers, mode=self.mode)
        return cache, cache.capture_all(self.keys, self.make_run)

    def check(self, options: BenchmarkOptions) -> None:
        """Require right rows and values from replays with other lengths.

        Raises:
            WrongValueError: a size failed to capture, or a replay differs.
        """
        cache, report = self.capture()
        if report.failed:
            failure = report.failed[0]
            raise WrongValueError(
                f"{len(report.failed)} sizes of the {self.name} ladder were not captured",
                arrived=f"{failure.key.tokens} tokens: {failure.cause}",
                allowed="all of them",
                remedy="cure the cause; times of an incomplete ladder say nothing",
            )
        reference = uniform_rows if self.name == "fixed" else flatten_rows
        for key in {cache.keys[0], cache.keys[len(cache.keys) // 2], cache.keys[-1]}:
            self.fill(key, 1 + key.tokens)
            rows, value = cache.replay(key)
            options.timer.synchronize()
            value = value.clone()
            expected = reference(self.batch(key), self.limits)
            for name in ("row_lens", "schedule_lens", "row_request", "row_token", "token_slot"):
                what = f"{self.name} graph of {key.tokens} tokens: {name}"
                require_equal(what, getattr(rows, name), getattr(expected, name))
            eager = self.hidden[: key.tokens]
            for up, down in self.weights:
                eager = eager + torch.nn.functional.silu(eager @ up) @ down
            error = float((value.float() - eager.float()).norm() / eager.float().norm())
            if not error <= TOLERANCE[value.dtype]:
                raise WrongValueError(
                    f"the {self.name} graph of {key.tokens} tokens differs from the eager step",
                    arrived=error,
                    allowed=f"a relative difference of at most {TOLERANCE[value.dtype]}",
                    remedy="do not use this graph backend here; no time was taken",
                )
