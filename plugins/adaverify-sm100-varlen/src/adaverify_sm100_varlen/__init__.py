"""Data-centre Blackwell: ragged rows with request indices, and the paged-MQA kernel that reads them."""

from adaverify_sm100_varlen.deep_gemm.versions import (
    KNOWN_VERSIONS,
    KnownVersion,
    LogitsContract,
    known_version,
)

__all__ = ["KNOWN_VERSIONS", "KnownVersion", "LogitsContract", "known_version"]
