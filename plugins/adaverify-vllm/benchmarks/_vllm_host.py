"""vLLM's real worker classes on a machine without a GPU, for the contract tests and the host benchmark.

The classes are those of the installed package. What needs a driver is replaced before it is used: pinned
memory by ordinary memory, and streams and events by ones whose work is done when a call returns.
"""

from __future__ import annotations

import contextlib
import socket
from types import SimpleNamespace

import numpy as np
import torch


class HostStream:
    """A stream of a machine whose work is done when a call returns."""

    def __init__(self, *_, **__):
        pass

    def wait_stream(self, _):
        pass


class HostEvent:
    """An event on such a stream."""

    def __init__(self, *_, **__):
        pass

    def record(self, *_):
        pass

    def synchronize(self):
        pass

    def query(self):
        return True


def load(rank: int = 0, size: int = 1, address: str | None = None) -> SimpleNamespace:
    """Import vLLM's modules and join a tensor-parallel group over gloo; once a process."""
    import vllm.utils.platform_utils as platform_utils

    # Pinned memory needs a driver; the wheel for CUDA asks for it before it looks for one.
    platform_utils.is_pin_memory_available = lambda: False
    import vllm.platforms

    vllm.platforms.current_platform.device_type = "cpu"
    import vllm.v1.attention.backends.mla.indexer as indexer
    import vllm.v1.worker.gpu.async_utils as async_utils
    import vllm.v1.worker.gpu.model_runner as runner
    import vllm.v1.worker.gpu.spec_decode.adaptive_verification as adaptive
    import vllm.v1.worker.gpu.states as states

    torch.cuda.Stream, torch.cuda.Event = HostStream, HostEvent
    torch.cuda.current_stream = lambda *_: HostStream()
    adaptive.stream = lambda *_: contextlib.nullcontext()
    # The same function without the compiler, which would take a minute here.
    adaptive._assign_draft_token_budget_compiled = adaptive._assign_draft_token_budget
    _join(rank, size, address or free_address())
    return SimpleNamespace(
        adaptive=adaptive, async_utils=async_utils, indexer=indexer, runner=runner, states=states
    )


def free_address() -> str:
    """Return an address that nobody listens on yet."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def _join(rank: int, size: int, address: str) -> None:
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel

    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(size, rank, address, rank, "gloo")
        initialize_model_parallel(size, 1)


class Case:
    """A request state, vLLM's boundary buffer, and one manager over them, driven as the model runner does.

    Args:
        vllm: what ``load`` returned.
        make: makes the manager from (state, query_start_loc, bonus, most logits rows).
        slots: request slots.
        drafts: K.
        bonus: logits rows of each request that are not drafts.
        rows_limit: logits rows in one chunk.
    """

    def __init__(self, vllm, make, *, slots=16, drafts=7, bonus=1, rows_limit=10**6, most_tokens=512):
        self.vllm, self.drafts, self.bonus = vllm, drafts, bonus
        self.state = vllm.states.RequestState(slots, 4096, most_tokens, drafts, 1000, torch.device("cpu"))
        self.boundaries = torch.zeros(slots + 1, dtype=torch.int32)
        self.manager = make(self.state, self.boundaries, bonus, rows_limit)

    def add(self, name, prompt=10, computed=None):
        """Let a request in; its prompt is computed unless ``computed`` says how far."""
        done = prompt if computed is None else computed
        self.state.add_request(name, prompt, list(range(prompt)), done, 100)
        slot = self.state.req_id_to_index[name]
        self.state.total_len.gpu[slot] = prompt
        self.manager.add_request(slot)
        return slot

    def price(self, seconds, sizes, requests=(1, 16), drafting=0.1):
        """Profile: forward milliseconds by token count, at the captured sizes and beyond."""
        sample = self.vllm.async_utils.StepTimingSample
        runs = list(self.manager.batches_to_profile(list(sizes)))
        most = sizes[-1] if sizes else 0
        samples = [
            sample(
                seconds(run["num_tokens"]),
                drafting,
                run["num_tokens"],
                requests[0],
                run["num_tokens"] <= most,
            )
            for run in runs
        ]
        samples += [sample(seconds(sizes[0]), drafting, sizes[0], count, True) for count in requests]
        self.manager.set_initial_cost_curves(samples)
        return runs

    def schedule(self, drafts, extra=()):
        """Return what the scheduler would: tokens by request and draft tokens by request.

        Args:
            drafts: drafts of each request by name; each has one more query token.
            extra: (name, query tokens) of prefill chunks.
        """
        tokens = {name: count + 1 for name, count in drafts.items()} | dict(extra)
        return tokens, {name: [-1] * count for name, count in drafts.items() if count}

    def step(self, tokens, drafts):
        """Run one step's host side in the model runner's order; return everything it hands on."""
        total = self.manager.get_num_tokens(tokens, drafts)
        names = self.vllm.runner.sort_batch_req_ids(tokens, drafts, self.drafts + 1)
        count = len(names)
        scheduled = np.array([tokens[name] for name in names], dtype=np.int32)
        drafted = np.array([len(drafts.get(name, ())) for name in names], dtype=np.int32)
        offsets = np.zeros(count + 1, dtype=np.int32)
        np.cumsum(drafted + self.bonus, out=offsets[1:])
        lengths, host_offsets = self.manager.compact_batch(drafted, scheduled, offsets)
        host = np.empty(len(self.boundaries), dtype=np.int32)
        host[0] = 0
        np.cumsum(lengths, out=host[1 : count + 1])
        host[count + 1 :] = total
        self.boundaries.copy_(torch.from_numpy(host))
        slots = np.array([self.state.req_id_to_index[name] for name in names], dtype=np.intp)
        rows = torch.from_numpy(slots.astype(np.int64))
        logits, boundaries, budget, counts = self.manager.reallocate_drafts(names, rows)
        assert boundaries is self.boundaries
        return SimpleNamespace(
            names=names,
            total=total,
            scheduled=scheduled,
            drafted=drafted,
            lengths=lengths,
            offsets=offsets,
            host_offsets=host_offsets,
            logits=logits.clone(),
            boundaries=boundaries.clone(),
            budget=budget,
            counts=counts,
            rows=rows,
            slots=slots,
        )

    def record(self, names, confidences, grown=1):
        """End a step: requests grow, and the confidences of their next drafts are handed over."""
        slots = np.array([self.state.req_id_to_index[name] for name in names], dtype=np.intp)
        for slot, more in zip(slots, np.broadcast_to(grown, len(slots)), strict=True):
            self.state.total_len.gpu[slot] += int(more)
            self.state.num_computed_tokens_np[slot] += int(more)
        padded = torch.zeros((self.state.max_num_reqs, self.drafts))
        padded[: len(names)] = torch.as_tensor(confidences, dtype=torch.float32)
        batch = SimpleNamespace(
            num_reqs=len(names), idx_mapping=torch.from_numpy(slots.astype(np.int64)), idx_mapping_np=slots
        )
        self.manager.record_confidences(padded, batch)

    def know(self, names, confidences):
        """Hand the same confidences over until budgets may read them."""
        for _ in range(3):
            self.record(names, confidences)


def theirs(vllm):
    """Return a maker of vLLM's own manager."""
    return lambda state, boundaries, bonus, limit: vllm.adaptive.AdaptiveVerificationManager(
        state, boundaries, bonus, max_total_logits=limit
    )


def ours(
    vllm, *, ranks=None, observer=None, agreement="rank0", backend="torch", copy_admitted=False, **options
):
    """Return a maker of our manager with the planner's options."""
    from adaverify_verification import ManagerOptions, RatioPolicy
    from adaverify_vllm.manager import BridgeManager, Choices
    from adaverify_vllm.ranks import Alone

    def make(state, boundaries, bonus, limit):
        choices = Choices(
            options=ManagerOptions(**({"mixed_tiers": True} | options)),
            policy=RatioPolicy(),
            backend=backend,
            agreement=agreement,
            depth=4,
            context=8192,
            facts={"device": "cpu"},
            strategy="vllm",
            observer=observer,
            counts=vllm.adaptive.AdmittedDraftCounts,
        )
        return BridgeManager(
            state,
            boundaries,
            bonus,
            limit,
            ranks=ranks or Alone(),
            choices=choices,
            copy_admitted=copy_admitted,
        )

    return make
