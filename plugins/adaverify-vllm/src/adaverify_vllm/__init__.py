"""The bridge into vLLM: our planner, relay, assignment and row metadata behind its adaptive verification."""

from adaverify_vllm.doctor import report
from adaverify_vllm.installation import install, uninstall
from adaverify_vllm.plugin import register, unregister
from adaverify_vllm.seams import SUPPORTED

__all__ = ["SUPPORTED", "install", "register", "report", "uninstall", "unregister"]
