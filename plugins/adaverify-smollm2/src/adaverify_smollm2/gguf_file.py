"""Read a GGUF file: typed metadata and dequantised tensors, every fault a ``ModelFileError``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from adaverify_contracts import ModelFileError

if TYPE_CHECKING:
    import numpy as np

_REFETCH = "delete the file so that it is fetched again, or pass another GGUF file"


class GgufFile:
    """An open GGUF file. Tensors stay mapped from the disk and are dequantised when asked for.

    Args:
        path: the file. Reading its 49152 token strings and 48900 merges takes about 1.2 s.

    Raises:
        ModelFileError: the file is absent, is not GGUF, or ends early.
    """

    def __init__(self, path: Path) -> None:
        from adaverify_smollm2._mapped_reader import MappedReader

        self.path = path
        try:
            self._reader = MappedReader(path)
        except OSError as error:
            raise ModelFileError(
                "the model file cannot be opened", arrived=str(error), allowed="a GGUF file", remedy=_REFETCH
            ) from error
        # The reader has no error type of its own; a damaged header surfaces as whichever comes first.
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
            raise ModelFileError(
                "the model file is damaged or not GGUF",
                arrived=f"{path}: {type(error).__name__}: {error}",
                allowed="a whole GGUF file of version 2 or 3",
                remedy=_REFETCH,
            ) from error
        self._tensors = {str(tensor.name): tensor for tensor in self._reader.tensors}
        self._taken: set[str] = set()

    def has(self, key: str) -> bool:
        """Tell whether the metadata has ``key``."""
        return key in self._reader.fields

    def integer(self, key: str, lowest: int = 0) -> int:
        """Return an integer of the metadata that is at least ``lowest``."""
        value = self._value(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < lowest:
            raise self._wrong(key, value, f"an integer >= {lowest}")
        return value

    def positive_float(self, key: str) -> float:
        """Return a finite number above zero of the metadata."""
        value = self._value(key)
        if not isinstance(value, float) or not 0.0 < value < float("inf"):
            raise self._wrong(key, value, "a finite number above 0")
        return value

    def text(self, key: str) -> str:
        """Return a string of the metadata."""
        value = self._value(key)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a string")
        return value

    def items(self, key: str, kind: type) -> list[Any]:
        """Return an array of the metadata whose items are all of ``kind``."""
        value = self._value(key)
        if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
            raise self._wrong(key, type(value).__name__, f"an array of {kind.__name__}")
        return value

    def tensor(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return a tensor dequantised to float32, in row-major order (a linear weight is [out, in]).

        Raises:
            ModelFileError: absent, another shape, or a quantisation that ``gguf`` cannot undo.
        """
        import gguf
        import numpy as np

        stored = self._tensors.get(name)
        if stored is None:
            raise ModelFileError(
                f"the model file lacks the tensor {name}",
                arrived=str(self.path),
                allowed="every tensor of a llama-architecture model",
                remedy=_REFETCH,
            )
        # GGUF lists the innermost dimension first.
        found = tuple(int(size) for size in reversed(stored.shape))
        if found != shape:
            raise self._wrong(name, found, f"the shape {shape} that the metadata implies")
        try:
            values = gguf.dequantize(stored.data, stored.tensor_type)
        except NotImplementedError as error:
            raise self._wrong(name, stored.tensor_type.name, "a quantisation that gguf can undo") from error
        self._taken.add(name)
        # Unquantised tensors are views of the read-only mapping, which torch may not share.
        return np.require(values, np.float32, ("C", "W")).reshape(shape)

    def has_tensor(self, name: str) -> bool:
        """Tell whether the file holds a tensor of this name."""
        return name in self._tensors

    def untaken(self) -> list[str]:
        """Return the tensors nobody has asked for yet; a weight left unread means another architecture."""
        return sorted(set(self._tensors) - self._taken)

    def _value(self, key: str) -> object:
        field = self._reader.fields.get(key)
        if field is None:
            raise ModelFileError(
                f"the model file lacks the key {key}",
                arrived=str(self.path),
                allowed="every key of a llama-architecture model with a byte-level BPE vocabulary",
                remedy=_REFETCH,
            )
        try:
            return field.contents()
        except (ValueError, IndexError) as error:
            raise self._wrong(key, f"{type(error).__name__}: {error}", "readable metadata") from error

    def _wrong(self, what: str, arrived: object, allowed: str) -> ModelFileError:
        return ModelFileError(
            f"{what} of the model file is not usable", arrived=arrived, allowed=allowed, remedy=_REFETCH
        )
