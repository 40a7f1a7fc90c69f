"""What a model returned, held against its contract: host attributes only, so that nothing waits."""

from __future__ import annotations

from typing import TypeGuard

import torch

from adaverify_contracts import EngineError, ModelGeometry
from adaverify_contracts.describing import kind_of


class Returned:
    """Refuses states, features and logits that no step can go on with, before they give a wrong token.

    Shape, dtype and device are known on the host: the checks cost no wait and are not in a captured graph.

    Args:
        geometry: of the model.
        device: run device.
        dtype: of the model's features.
    """

    def __init__(self, geometry: ModelGeometry, device: torch.device, dtype: torch.dtype) -> None:
        self._name, self._hidden, self._vocabulary = geometry.name, geometry.hidden, geometry.vocabulary
        self._device, self._dtype = device.type, dtype

    def states(self, found: object, tokens: int) -> torch.Tensor:
        """Return hidden states [tokens, hidden] of any floating dtype.

        Raises:
            EngineError: they are something else.
        """
        shape = (tokens, self._hidden)
        if self._fits(found, shape) and found.dtype.is_floating_point:
            return found
        raise self._refusal("hidden states", found, f"{shape}, floating point")

    def tapped(self, found: object, tokens: int, taps: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return hidden states, and features [tokens, taps x hidden] in the model's dtype.

        Raises:
            EngineError: they are something else.
        """
        if not isinstance(found, tuple | list) or len(found) != 2:
            raise self._refusal("pair of hidden states and features", found, "a tuple of two tensors")
        states, features = self.states(found[0], tokens), found[1]
        shape = (tokens, taps * self._hidden)
        if self._fits(features, shape) and features.dtype == self._dtype:
            return states, features
        raise self._refusal("features", features, f"{shape}, {self._dtype}")

    def logits(self, found: object, tokens: int) -> torch.Tensor:
        """Return logits float32 [tokens, vocabulary].

        Raises:
            EngineError: they are something else.
        """
        shape = (tokens, self._vocabulary)
        if self._fits(found, shape) and found.dtype == torch.float32:
            return found
        raise self._refusal("logits", found, f"{shape}, torch.float32")

    def _fits(self, found: object, shape: tuple[int, ...]) -> TypeGuard[torch.Tensor]:
        return isinstance(found, torch.Tensor) and found.shape == shape and found.device.type == self._device

    def _refusal(self, what: str, found: object, allowed: str) -> EngineError:
        arrived = kind_of(found)
        if isinstance(found, torch.Tensor):
            arrived = f"{tuple(found.shape)}, {found.dtype} on {found.device}"
        return EngineError(
            f"the model {self._name} returned no {what} of its contract",
            arrived=arrived,
            allowed=f"{allowed} on {self._device}",
            remedy="report it to the author of the model's plugin",
        )
