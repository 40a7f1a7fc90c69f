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
    """Let the bridge in once vLLM imports its model runner. Idempotent; never raises.

    Does nothing with ``ADAVERIFY_VLLM=off`` or beside a vLLM that is not supported; the latter is logged in
    one line.
    """
    global _watch
    try:
        if _watch is not None or (why := refusal()) == "":
            return
        if why is not None:
            LOG.warning("%s", why)
            return
        _watch = ImportWatch(seams.RUNNER, _arrived)
        _watch.start()
    except Exception as error:  # noqa: BLE001 - a plugin that raises keeps vLLM from starting
        LOG.warning(
            "adaverify-vllm changes nothing: %s: %s; run `adaverify doctor --vllm`",
            type(error).__name__,
            error,
        )


def unregister() -> None:
    """Take everything back: the watch and whatever was put into vLLM."""
    global _watch
    from adaverify_vllm.installation import uninstall

    if _watch is not None:
        _watch.stop()
        _watch = None
    uninstall()


def refusal() -> str | None:
    """Return why the bridge must not act here, empty when a setting says so, None when it may.

    Raises:
        SettingsError: a setting is wrong.
    """
    from adaverify_runtime import BridgeSettings

    if BridgeSettings().vllm == "off":
        return ""
    release = seams.vllm_version()
    if release is None:
        return "adaverify-vllm changes nothing: vLLM is not installed; install vllm"
    if not seams.supports(release):
        allowed = ", ".join(f"{item}.x" for item in seams.SUPPORTED)
        return (
            f"adaverify-vllm changes nothing: vLLM {release} is not supported, only {allowed}; "
            "install another adaverify-vllm, or set ADAVERIFY_VLLM=off to silence this line"
        )
    return None


def _arrived(runner: ModuleType) -> None:
    from adaverify_vllm.installation import install

    try:
        if _enabled() is not False:
            install(runner)
    except Exception as error:  # noqa: BLE001 - the importer is vLLM
        LOG.warning(
            "adaverify-vllm changes nothing: %s: %s; run `adaverify doctor --vllm`",
            type(error).__name__,
            error,
        )


def _enabled() -> bool | None:
    """Return whether the configuration in force asks for adaptive verification, None when none is known."""
    from importlib import import_module

    config = import_module("vllm.config.vllm").get_current_vllm_config_or_none()
    if config is None:
        return None
    speculative = config.speculative_config
    return bool(speculative is not None and speculative.enable_adaptive_verification)
