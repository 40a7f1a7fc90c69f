"""Confidences to the host without a wait."""

from adaverify_verification.relay.base import CopyQueue, Relay, RingRelay
from adaverify_verification.relay.cpu import CpuRelay
from adaverify_verification.relay.cuda import CudaRelay
from adaverify_verification.relay.select import make_relay

__all__ = ["CopyQueue", "CpuRelay", "CudaRelay", "Relay", "RingRelay", "make_relay"]
