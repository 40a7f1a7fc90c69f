"""The entry point that vLLM calls in every one of its processes."""

from __future__ import annotations

import logging
from types import ModuleType

from adaverify_vllm import seams
from adaverify_vllm.watching import ImportWatch

# Below vLLM's own logger, so that its handlers and levels apply.
LOG = logging.getLogger("vllm.adaverify")

_watch: ImportWatch | None = None


def register() -> None:
    """Watch for vLLM's model runner, to let the bridge in once it is imported. Idempotent; never raises.

    Reads no setting and imports nothing of ours but this package: most processes of vLLM never import the
    runner, and they should not pay for it. Beside a vLLM that is not supported nothing is watched, and one
    line is logged.
    """
    global _watch
    try:
        if _watch is not None:
            return
        if (why := unsupported()) is not None:
            LOG.warning("%s", why)
            return
        _watch = ImportWatch(seams.RUNNER, _arrived)
        _watch.start()
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a plugin that raises keeps vLLM from starting
        give_up(error)


def unregister() -> None:
    """Take everything back: the watch and whatever was put into vLLM."""
    global _watch
    from adaverify_vllm.installation import uninstall

    if _watch is not None:
        _watch.stop()
        _watch = None
    uninstall()


def unsupported() -> str | None:
    """Return why the bridge must not act beside this vLLM, None when it may."""
    release = seams.vllm_version()
    if release is None:
        return "adaverify-vllm changes nothing: vLLM is not installed; install vllm"
    if not seams.supports(release):
        allowed = ", ".join(f"{item}.x" for item in seams.SUPPORTED)
        return (
            f"adaverify-vllm changes nothing: vLLM {release} is not supported, only {allowed}; install the "
            "adaverify-vllm made for it, or remove this one to silence this line"
        )
    if not seams.has_runner():
        return (
            f"adaverify-vllm changes nothing: vLLM {release} has no module {seams.RUNNER}; install the "
            "adaverify-vllm made for it, or remove this one to silence this line"
        )
    return None


def switched_off() -> bool:
    """Return whether ``ADAVERIFY_VLLM`` is off.

    Raises:
        SettingsError: it is neither on nor off.
    """
    from adaverify_runtime import BridgeSettings

    return BridgeSettings().vllm == "off"


def _arrived(runner: ModuleType) -> None:
    try:
        from adaverify_vllm.installation import install

        if _enabled() is not False:
            install(runner)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the importer is vLLM
        give_up(error)


def give_up(error: BaseException) -> None:
    """Log the one line that says why nothing was changed."""
    what = f"{type(error).__name__}: {error}"
    LOG.warning("adaverify-vllm changes nothing: %s; run `adaverify doctor --vllm`", what)


def _enabled() -> bool | None:
    """Return whether the configuration in force asks for adaptive verification, None when none is known."""
    from importlib import import_module

    config = import_module("vllm.config.vllm").get_current_vllm_config_or_none()
    if config is None:
        return None
    speculative = config.speculative_config
    return bool(speculative is not None and speculative.enable_adaptive_verification)
