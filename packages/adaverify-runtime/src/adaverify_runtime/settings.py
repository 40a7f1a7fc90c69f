"""Settings: the only place of the project that reads the environment.

One class per concern; the variable of a field is the class's prefix and the field's name in capitals, for
instance ``ADAVERIFY_PLUGINS_DISABLED``. Components never see these classes: they take plain dataclasses.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import platformdirs
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from adaverify_contracts import SettingsError
from adaverify_runtime._nearest import suggestion

PREFIX = "ADAVERIFY_"

Mode = Literal["none", "fixed", "adaptive"]

_INT32 = 2**31 - 1
_INT64 = 2**63 - 1
# Half of what 32 bits count: a length plus its drafts still fits.
_LENGTH = 2**30


def _split(value: object) -> object:
    """Turn ``a, b`` into ``("a", "b")``: lists in the environment are written with commas."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _switch(value: object) -> object:
    """Turn the usual words for a switch into ``on`` and ``off``."""
    if isinstance(value, bool):
        return "on" if value else "off"
    word = str(value).strip().lower()
    return {"1": "on", "true": "on", "yes": "on", "0": "off", "false": "off", "no": "off"}.get(word, word)


def _regular(path: Path | None) -> Path | None:
    """Refuse a folder, a pipe or a device: reading one would wait for ever or fill the memory."""
    try:
        if path is not None and path.exists() and not path.is_file():
            raise ValueError("not a regular file")
    except OSError as error:
        # A name too long, or links that lead back to themselves.
        raise ValueError(f"no path: {error.strerror}") from error
    return path


File = Annotated[Path | None, AfterValidator(_regular)]
Switch = Annotated[Literal["on", "off"], BeforeValidator(_switch)]
Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]


def _size(what: str) -> Any:
    return Field(default=None, ge=1, le=_LENGTH, description=f"an int in 1 .. {_LENGTH}: {what}")


_NUMBERS: tuple[Any, ...] = (int, float, int | None)


class _Section(BaseSettings):
    """One concern. Values given as arguments win over the environment."""

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_ignore_empty=True)

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(self._problems(error)) from None

    @field_validator("*", mode="before")
    @classmethod
    def _plain(cls, value: object, info: ValidationInfo) -> object:
        """Refuse underscores in a number: they would be left out, whatever was meant by them."""
        known = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, str) and "_" in value and known in _NUMBERS:
            raise ValueError("a number is written without underscores")
        return value

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Return the environment variables of this section and the field each one sets."""
        return {f"{cls.model_config['env_prefix']}{name}".upper(): name for name in cls.model_fields}

    @classmethod
    def _problems(cls, error: ValidationError) -> dict[str, tuple[object, str]]:
        problems: dict[str, tuple[object, str]] = {}
        for item in error.errors():
            name = str(item["loc"][0]) if item["loc"] else "settings"
            variable = f"{cls.model_config['env_prefix']}{name}".upper()
            known = cls.model_fields.get(name)
            if known is None:
                form = "no such setting" + suggestion(variable, cls.variables())
            else:
                form = known.description or str(item["msg"])
            problems.setdefault(variable, (item["input"], form))
        return problems


class DeviceSettings(_Section):
    """Which device, what to take it for, and which decode strategy to use on it."""

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_DEVICE_")

    name: str = Field(
        default="auto", min_length=1, description="a torch device such as cpu or cuda:0, or auto"
    )
    override: str | None = Field(
        default=None,
        min_length=1,
        description="an architecture word of the capability table, to take the device for",
    )
    strategy: str | None = Field(
        default=None, min_length=1, description="the name of a registered decode strategy"
    )


class PluginSettings(_Section):
    """Which plugins to load. Names are those of entry points, separated by commas."""

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_PLUGINS_")

    enabled: Names | None = Field(
        default=None, description="plugin names separated by commas; only these are loaded"
    )
    required: Names = Field(default=(), description="plugin names separated by commas; each must load")
    disabled: Names = Field(
        default=(), description="plugin names separated by commas; none of these is loaded"
    )
    observer_queue: int = Field(
        default=64,
        ge=1,
        le=65536,
        description="an int in 1 .. 65536: records kept until observers are called",
    )


class PlannerSettings(_Section):
    """How many drafts to verify: mode, signal, policy and guard."""

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_PLANNER_")

    mode: Mode = Field(default="adaptive", description="none, fixed or adaptive")
    signal: str = Field(
        default="calibrated", min_length=1, description="the name of a registered confidence signal"
    )
    policy: str = Field(default="ratio", min_length=1, description="the name of a registered budget policy")
    margin: float = Field(
        default=0.02, ge=0, le=10, description="a number in 0 .. 10: gain over full verification to ask for"
    )
    hysteresis: float = Field(
        default=0.005, ge=0, le=1, description="a number in 0 .. 1: gain below which the tier stays"
    )
    warmup_steps: int = Field(
        default=32,
        ge=0,
        le=_INT32,
        description="an int in 0 .. 2147483647: most steps verified fully while the signal learns",
    )
    explore_share: float = Field(
        default=0.01, ge=0, le=0.5, description="a number in 0 .. 0.5: time that exploration may lose"
    )
    online: bool = Field(default=True, description="true or false: refresh the cost model while serving")
    lossless: Literal["downgrade", "refuse"] = Field(default="downgrade", description="downgrade or refuse")
    mixed_tiers: bool = Field(
        default=False, description="true or false: pad batches with prefill chunks to the tiers too"
    )


class GraphSettings(_Section):
    """Whether and how decode steps are captured."""

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_GRAPHS_")

    mode: Literal["never", "uniform", "varlen"] | None = Field(
        default=None, description="never, uniform or varlen; unset means the highest available"
    )
    backend: str | None = Field(
        default=None, min_length=1, description="the name of a registered graph backend"
    )
    max_graphs: int | None = Field(
        default=None, ge=1, le=65536, description="an int in 1 .. 65536: the most sizes to capture"
    )
    bytes_limit: int | None = Field(
        default=None,
        ge=0,
        le=_INT64,
        description="an int in 0 .. 9223372036854775807: bytes that captures may take",
    )
    prompts: bool = Field(
        default=True, description="true or false: whether steps that read prompts are captured too"
    )


class RelaySettings(_Section):
    """How confidences travel to the host."""

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_RELAY_")

    depth: int = Field(default=4, ge=2, le=4096, description="an int in 2 .. 4096: slots of the ring")


class EngineSettings(_Section):
    """Defaults of the reference engine; it turns them into its own options.

    The bounds keep every size within what kernels count in 32 bits; whether a size fits the device is asked
    where it is known.
    """

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_ENGINE_")

    max_requests: int = Field(
        default=8, ge=1, le=65536, description="an int in 1 .. 65536: decode requests in one step"
    )
    draft_tokens: int = Field(
        default=7, ge=0, le=65536, description="an int in 0 .. 65536: K, draft tokens per request"
    )
    max_model_len: int = Field(
        default=2048, ge=2, le=_LENGTH, description="an int in 2 .. 1073741824: longest sequence in tokens"
    )
    page_size: int = Field(
        default=16, ge=1, le=_LENGTH, description="an int in 1 .. 1073741824: tokens in one KV page"
    )
    num_pages: int | None = Field(
        default=None,
        ge=2,
        le=_INT32,
        description="an int in 2 .. 2147483647: KV pages with the null page; unset means enough for all",
    )
    prefill_chunk: int | None = Field(
        default=None,
        ge=1,
        le=_LENGTH,
        description="an int in 1 .. 1073741824: most prompt tokens in one step; unset means 256 on a CPU and "
        "4096 on an accelerator",
    )
    seed: int = Field(default=0, ge=0, le=_INT64, description="an int in 0 .. 9223372036854775807")
    dtype: Literal["float32", "bfloat16"] = Field(default="bfloat16", description="float32 or bfloat16")


class SparseMoeSettings(_Section):
    """Sizes of the sparse mixture-of-experts decoder of ``adaverify bench endtoend``.

    Unset sizes are those of ``adaverify_engine.sparse_moe.SparseMoeSizes``, which checks all together.
    """

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_SPARSE_MOE_")

    layers: int | None = _size("decoder layers")
    hidden: int | None = _size("residual width")
    query_rank: int | None = _size("width that queries are projected from")
    heads: int | None = _size("query heads of attention")
    latent: int | None = _size("width of a cache entry's value")
    rope: int | None = _size("rotated width of queries and keys")
    index_heads: int | None = _size("heads of the indexer")
    index_dim: int | None = _size("width of an index head")
    selected: int | None = _size("entries a query token attends to, at most")
    compress_ratio: int | None = _size("tokens to one cache entry")
    output_rank: int | None = _size("width between attention and residual")
    experts: int | None = _size("routed experts of the whole model")
    local_experts: int | None = _size("routed experts on this accelerator")
    active_experts: int | None = _size("experts of one token")
    expert_width: int | None = _size("inner width of a routed expert")
    shared_width: int | None = _size("inner width of the shared expert")
    vocabulary: int | None = _size("token ids")

    def chosen(self) -> dict[str, int]:
        """Return the sizes that are set, by name."""
        return self.model_dump(exclude_none=True)


class BridgeSettings(_Section):
    """The bridge into vLLM, read by its plugin in every process of vLLM."""

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_")

    vllm: Switch = Field(
        default="on", description="on or off (also 1 or 0, true or false): whether the bridge may act"
    )
    vllm_agreement: Literal["rank0", "digest"] = Field(
        default="rank0", description="rank0 or digest: how tensor-parallel ranks come to one budget"
    )


class PathSettings(_Section):
    """Where files are kept."""

    model_config = SettingsConfigDict(env_prefix="ADAVERIFY_PATHS_")

    cache: Path = Field(
        default_factory=lambda: Path(platformdirs.user_cache_dir("adaverify", appauthor=False)),
        description="a folder for cost tables and calibration",
    )
    cost_table: File = Field(
        default=None, description="a cost table, a regular file written by `adaverify profile`"
    )
    row_costs: File = Field(
        default=None, description="a row-cost table, a regular file that a strategy's benchmark wrote"
    )
    trace: File = Field(default=None, description="a regular file that step records are appended to")
    calibration: File = Field(
        default=None, description="a file written by `adaverify calibrate`, or a JSON file of temperatures"
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a process.

    Attributes:
        warnings: what the environment holds that no setting reads, with the nearest known variable.
    """

    device: DeviceSettings = field(default_factory=DeviceSettings)
    plugins: PluginSettings = field(default_factory=PluginSettings)
    planner: PlannerSettings = field(default_factory=PlannerSettings)
    relay: RelaySettings = field(default_factory=RelaySettings)
    graphs: GraphSettings = field(default_factory=GraphSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    paths: PathSettings = field(default_factory=PathSettings)
    bridge: BridgeSettings = field(default_factory=BridgeSettings)
    sparse_moe: SparseMoeSettings = field(default_factory=SparseMoeSettings)
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return every section, JSON-ready, without the warnings."""
        sections = {name: getattr(self, name) for name in _SECTIONS}
        return {name: section.model_dump(mode="json") for name, section in sections.items()}


_SECTIONS: dict[str, type[_Section]] = {
    "device": DeviceSettings,
    "plugins": PluginSettings,
    "planner": PlannerSettings,
    "relay": RelaySettings,
    "graphs": GraphSettings,
    "engine": EngineSettings,
    "paths": PathSettings,
    "bridge": BridgeSettings,
    "sparse_moe": SparseMoeSettings,
}


def read_settings() -> Settings:
    """Read every section from the environment.

    Raises:
        SettingsError: names every variable that is wrong in any section, its value and the expected form.
    """
    problems: dict[str, tuple[object, str]] = {}
    sections: dict[str, Any] = {}
    for name, section in _SECTIONS.items():
        try:
            sections[name] = section()
        except SettingsError as error:
            problems.update(error.problems)
    if problems:
        raise SettingsError(problems)
    return Settings(**sections, warnings=unknown_variables(os.environ))


def idle_threads_sleep() -> bool:
    """Return whether OMP_WAIT_POLICY tells the threads of a CPU to sleep, not spin, while they wait."""
    return os.environ.get("OMP_WAIT_POLICY", "").strip().upper() == "PASSIVE"


def known_variables() -> tuple[str, ...]:
    """Return every environment variable that a setting reads."""
    return tuple(variable for section in _SECTIONS.values() for variable in section.variables())


def unknown_variables(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return a warning for each variable with our prefix that no setting reads."""
    known = known_variables()
    return tuple(
        f"{name} is set and no setting reads it{suggestion(name.upper(), known)}"
        for name in sorted(environment)
        if name.upper().startswith(PREFIX) and name.upper() not in known
    )
