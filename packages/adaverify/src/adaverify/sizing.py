"""How long sequences are for a job, and whether its drafts and its KV caches fit: which size is to blame."""

from __future__ import annotations

from dataclasses import replace

from adaverify_contracts import EngineError, ModelGeometry
from adaverify_engine import EngineOptions

_BYTES = {"float32": 4, "bfloat16": 2}
# What a sequence holds beside its drafts when a step is priced: context, certain token and bonus token.
_AROUND_DRAFTS = 3
_SHORTEST = 128


def sized_options(options: EngineOptions, concurrency: int, needed: int, longest: int) -> EngineOptions:
    """Return ``options`` for other sizes.

    The length is rounded up to a power of two, so that runs of like prompts share a cost table.

    Args:
        options: of the engine.
        concurrency: requests at once.
        needed: tokens of the longest sequence.
        longest: tokens that no sequence may exceed.

    Raises:
        EngineError: K leaves no room for a request.
    """
    wanted = max(needed, options.draft_tokens + _AROUND_DRAFTS, _SHORTEST)
    length = min(1 << (wanted - 1).bit_length(), longest)
    require_room(options.draft_tokens, length)
    return replace(options, max_requests=concurrency, max_model_len=length)


def require_room(draft_tokens: int, length: int) -> None:
    """Require that a sequence of ``length`` tokens holds K drafts and what stands around them.

    Raises:
        EngineError: it does not; has the largest K.
    """
    most = max(length - _AROUND_DRAFTS, 0)
    if draft_tokens > most:
        raise EngineError(
            "K leaves no room for a request",
            arrived=draft_tokens,
            allowed=f"0 .. {most}: a sequence of {length} tokens holds context, drafts and bonus token",
            remedy="choose a smaller --draft-tokens",
        )


def require_cache(options: EngineOptions, geometry: ModelGeometry, memory: int, engines: int) -> None:
    """Require that the KV caches fit the memory.

    Args:
        options: sizes of each engine.
        geometry: of the model.
        memory: bytes of the device; 0 where it is not known, and then nothing is refused.
        engines: engines that hold a cache at the same time.

    Raises:
        EngineError: they do not; names the pages where the user chose their number, else requests and length.
    """
    token = 2 * geometry.layers * geometry.kv_heads * geometry.head_dim * _BYTES[options.dtype]
    cache = engines * options.pool_pages * options.page_size * token
    if not memory or cache <= memory:
        return
    if options.num_pages is None:
        whose = f"{options.max_requests} requests of {options.max_model_len} tokens"
        remedy = "lower --concurrency or the length"
    else:
        whose = f"{options.num_pages} pages of {options.page_size} tokens (ADAVERIFY_ENGINE_NUM_PAGES)"
        most = memory // (engines * options.page_size * token)
        remedy = (
            f"set ADAVERIFY_ENGINE_NUM_PAGES to at most {most}, or unset it to reserve what requests need"
        )
    raise EngineError(
        f"the KV caches of {whose} do not fit the memory",
        arrived=f"{cache / 1e9:.1f} GB for {engines} engine{'' if engines == 1 else 's'}",
        allowed=f"{memory / 1e9:.1f} GB",
        remedy=remedy,
    )
