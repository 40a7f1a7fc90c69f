"""Make a manager of ours from what vLLM's factory was given, with the settings in force."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch

from adaverify_contracts import BudgetReads, Policy, PolicyDescriptor, Seen, SettingsError
from adaverify_runtime import PlannerSettings, Settings
from adaverify_verification import (
    DRAFTER,
    ManagerOptions,
    PricePolicy,
    RatioPolicy,
    require_lossless,
)
from adaverify_vllm import seams
from adaverify_vllm.assignment.assigner import serves
from adaverify_vllm.manager import BridgeManager, Choices
from adaverify_vllm.ranks import Ranks, vllm_ranks
from adaverify_vllm.settings import planner_in_force, settings_in_force
from adaverify_vllm.tracing import trace_of

LOG = logging.getLogger("vllm.adaverify")

# The sizes of a budget come from lagged confidences with either policy.
POLICIES: Mapping[str, Callable[[], Policy]] = {"ratio": RatioPolicy, "price": PricePolicy}
# vLLM's confidence head and its estimator read the logits and the tokens before a position, never the one
# drawn there (dspark and the acceptance estimator of 0.33).
SEEN = Seen.PREFIX
# What the planner here takes of the settings in force.
OPTIONS = ("mode", "margin", "hysteresis", "explore_share", "online", "mixed_tiers")


def activate(arguments: Mapping[str, Any]) -> BridgeManager:
    """Return our manager for the factory's arguments, and put our rows in place where they can run.

    All tensor-parallel ranks make one, or none does: ranks that trim differently would wait for each other.

    Raises:
        AdaverifyError: a setting is wrong, or the sizes do not fit.
        RuntimeError: another rank could not make its manager, or has no bridge.
    """
    ranks = vllm_ranks()
    if missing := ranks.absent():
        message = (
            f"tensor-parallel ranks {missing} have no bridge: install adaverify-vllm on every node and give "
            "all of them the same ADAVERIFY_ variables"
        )
        raise RuntimeError(message)
    problem: BaseException | None = None
    try:
        settings, notes = settings_in_force()
        manager = make_manager(arguments, settings, ranks)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the other ranks have to hear of it
        problem = error
    if sum(ranks.gather(int(problem is None))) < ranks.size and problem is None:
        problem = RuntimeError("another tensor-parallel rank could not make its manager; its log says why")
    if problem is not None:
        raise problem
    # The ranks have agreed: what fails from here on may cost rows or a line, never one rank's manager.
    try:
        rows = put_rows(torch.device(manager.req_states.device))
    except Exception as error:  # noqa: BLE001
        LOG.warning("adaverify leaves vLLM's row builder alone: %s: %s", type(error).__name__, error)
        rows = "rows: vLLM's own, ours cannot be put in"
    try:
        if ranks.leads:
            LOG.info("%s", said(manager, settings, ranks, rows))
    except Exception as error:  # noqa: BLE001
        LOG.warning("adaverify-vllm is active, and cannot say how: %s: %s", type(error).__name__, error)
    for line in notes:
        LOG.warning("%s", line)
    return manager


def make_manager(arguments: Mapping[str, Any], settings: Settings, ranks: Ranks) -> BridgeManager:
    """Return our manager for the factory's arguments.

    Raises:
        SettingsError: a policy that the bridge does not have.
        LosslessError: signal and policy could change what sampled requests emit.
    """
    policy = policy_of(settings.planner)
    state, config = arguments["req_states"], arguments["vllm_config"]
    values = planner_in_force(settings)
    options = ManagerOptions(**{name: values[name] for name in OPTIONS})
    facts = facts_of(config, state)
    rank = int(config.parallel_config.data_parallel_rank)
    choices = Choices(
        options=options,
        policy=policy,
        backend=assign_backend(state),
        agreement=settings.bridge.vllm_agreement,
        depth=settings.relay.depth,
        context=int(import_module("vllm.envs").VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN),
        facts=facts,
        strategy="vllm",
        observer=trace_of(settings, facts, rank) if ranks.leads else None,
        counts=import_module(seams.ADAPTIVE).AdmittedDraftCounts,
    )
    return BridgeManager(
        state,
        arguments["query_start_loc"],
        int(arguments["num_bonus_tokens"]),
        int(arguments["max_total_logits"]),
        ranks=ranks,
        choices=choices,
        copy_admitted=bool(arguments.get("copy_admitted_drafts_to_host", False)),
    )


def policy_of(planner: PlannerSettings) -> Policy:
    """Return the budget policy that the settings name.

    Raises:
        SettingsError: a policy that the bridge does not have.
        LosslessError: signal and policy could change what sampled requests emit.
    """
    if planner.policy not in POLICIES:
        raise SettingsError({"ADAVERIFY_PLANNER_POLICY": (planner.policy, "ratio or price, inside vLLM")})
    policy = POLICIES[planner.policy]
    descriptor = PolicyDescriptor(planner.policy, BudgetReads.HISTORY, policy)
    require_lossless(DRAFTER, descriptor, drafter_seen=SEEN, drafter_deterministic=False)
    return policy()


def assign_backend(state: Any) -> str:
    """Return the backend of the assignment: one launch on an accelerator, NumPy or torch elsewhere."""
    device = torch.device(state.device)
    fits = serves(int(state.max_num_reqs), int(state.num_speculative_steps))
    return "triton" if device.type == "cuda" and fits else "torch"


def put_rows(device: torch.device) -> str:
    """Put our row builder behind vLLM's on hardware that has to flatten; return what happened, in words."""
    from adaverify_vllm.installation import replace
    from adaverify_vllm.rows import wrap

    if device.type != "cuda" or torch.cuda.get_device_capability(device) != (9, 0):
        return "rows: vLLM's own, this is no compute capability 9.0"
    if wrong := seams.differences(seams.look(seams.ROW_SEAMS)):
        LOG.warning("adaverify leaves vLLM's row builder alone: %s", "; ".join(wrong))
        return "rows: vLLM's own, its builder differs"
    builder = getattr(import_module(seams.INDEXER), seams.BUILDER)
    replace(builder, seams.PREPARE, wrap(getattr(builder, seams.PREPARE), backend="triton"))
    return "rows: one launch, where a sparse indexer flattens them"


def facts_of(config: Any, state: Any) -> dict[str, object]:
    """Return what step times are measured on, by name."""
    device = torch.device(state.device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        "vllm": seams.vllm_version() or "unknown",
        "model": str(config.model_config.model),
        "dtype": str(config.model_config.dtype),
        "draft_tokens": int(state.num_speculative_steps),
        "shards": int(config.parallel_config.tensor_parallel_size),
    }


def said(manager: BridgeManager, settings: Settings, ranks: Ranks, rows: str) -> str:
    """Return the line that says what is active."""
    state = manager.req_states
    group = "one rank" if ranks.size == 1 else f"{ranks.size} ranks agree by {settings.bridge.vllm_agreement}"
    trace = f"trace {settings.paths.trace}" if manager.recorded else "no trace"
    return (
        f"adaverify-vllm {version('adaverify-vllm')} is active: mode {settings.planner.mode}, "
        f"K {state.num_speculative_steps}, up to {state.max_num_reqs} requests, assignment "
        f"{assign_backend(state)}, {rows}, {group}, {trace}; ADAVERIFY_VLLM=off turns it off"
    )
