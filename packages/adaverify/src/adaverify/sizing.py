"""Whether the KV caches that a command will make fit the memory, and which size is to blame."""

from __future__ import annotations

from adaverify_contracts import EngineError, ModelGeometry
from adaverify_engine import EngineOptions

_BYTES = {"float32": 4, "bfloat16": 2}


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
