"""The two paged caches of every layer: latent entries, and the indexer's FP8 keys."""

from __future__ import annotations

import torch

from adaverify_contracts import EngineError, Limits
from adaverify_engine.sparse_moe.sizes import SparseMoeSizes

_NULL_PAGES = 1


class SparseCaches:
    """Latent and index pools of all layers, and the pages of each request.

    Both pools have one entry for ``compress_ratio`` tokens and the same page ids, so one block table serves
    both. Page 0 belongs to nobody: padding requests name it.

    Attributes:
        latents: [layers, pages x P, latent + rope].
        index: uint8 [layers, pages, P, 1, index_dim + 4], pages as
            ``adaverify_metadata.pack_pages`` has them.
        block_table: int32 [max_requests, W]; each request slot has pages of its own, in shuffled order.

    Args:
        sizes: of the decoder.
        limits: sizes of the deployment.
        dtype: of the latent pool.
        device: torch device.

    Raises:
        EngineError: the pools do not fit the memory.
    """

    def __init__(
        self, sizes: SparseMoeSizes, limits: Limits, dtype: torch.dtype, device: torch.device
    ) -> None:
        requests, width, page = limits.max_requests, limits.table_width, limits.page_size
        pages = _NULL_PAGES + requests * width
        latents = (sizes.layers, pages * page, sizes.key)
        index = (sizes.layers, pages, page, 1, sizes.index_dim + 4)
        try:
            self.latents = torch.zeros(latents, dtype=dtype, device=device)
            self.index = torch.zeros(index, dtype=torch.uint8, device=device)
        except (RuntimeError, MemoryError) as error:
            size = sizes.layers * pages * page * (sizes.key * dtype.itemsize + sizes.index_dim + 4)
            raise EngineError(
                "the caches of the sparse decoder do not fit the memory",
                arrived=f"{size / 1e9:.1f} GB: {pages} pages of {page} entries in {sizes.layers} layers",
                allowed="what the device can give",
                remedy="lower max_requests or max_model_len",
            ) from error
        order = torch.randperm(requests * width, generator=torch.Generator().manual_seed(pages))
        table = (order + _NULL_PAGES).int().view(requests, width)
        self.block_table = table.to(device)
        self._dim = sizes.index_dim

    @property
    def bytes(self) -> int:
        """Bytes of both pools."""
        return self.latents.nbytes + self.index.nbytes

    def fill(self, seed: int) -> None:
        """Write random finite entries everywhere: latents as norms leave them, keys as quantised ones.

        Also past what requests hold: a kernel may fetch there, and nothing it finds may be NaN.
        """
        made = torch.Generator(self.latents.device).manual_seed(seed)
        layers, pages, page, _, _ = self.index.shape
        self.latents.normal_(0.0, 1.0, generator=made)
        flat = self.index.view(layers, pages, -1)
        codes, scales = flat[..., : page * self._dim], flat[..., page * self._dim :]
        for layer in range(layers):
            drawn = torch.randn(codes[layer].shape, generator=made, device=flat.device)
            # Four deviations at the largest code: that of a key's largest element, as the quantiser sets it.
            keys = (drawn * 112.0).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
            codes[layer].copy_(keys.view(torch.uint8))
            sizes = torch.full((pages, page), 1.0 / 112.0, device=flat.device)
            scales[layer].copy_(sizes.view(torch.uint8))
