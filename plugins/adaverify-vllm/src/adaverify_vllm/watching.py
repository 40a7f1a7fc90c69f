"""Run something when a module has been imported, without importing it.

vLLM loads its plugins in every process, also in those that never run a model. Importing the model runner
there would take many seconds, and the plugin is loaded before anybody else has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class _Loader(Loader):
    """Loads as the module's own loader does, and then calls."""

    def __init__(self, loader: Loader, then: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._then = then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What the module keeps of its loader must be the real one: resources and source are asked of it.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._then(module)


class ImportWatch(MetaPathFinder):
    """Calls ``then`` once with the module ``name``, now if it is imported already, else when it is.

    Args:
        name: full name of the module.
        then: called after the module's own code; what it raises reaches the importer.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self.name = name
        self._then = then
        self._looking = False

    def start(self) -> None:
        """Begin to watch."""
        module = sys.modules.get(self.name)
        if module is not None and not getattr(module.__spec__, "_initializing", False):
            self._then(module)
        else:
            sys.meta_path.insert(0, self)

    def stop(self) -> None:
        """Watch no more; stopping twice is harmless."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec that the other finders have for the module, with our loader around its own."""
        if fullname != self.name or self._looking:
            return None
        self._looking = True
        try:
            spec = find_spec(fullname)
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return None
        self.stop()
        spec.loader = _Loader(spec.loader, self._then)
        return spec
