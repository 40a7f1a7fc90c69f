"""A descriptor checks itself when it is built, so a plugin's slip fails at registration."""

import dataclasses

import pytest

from adaverify_contracts import (
    BudgetReads,
    Capability,
    DecodeStrategyDescriptor,
    DescriptorError,
    DrafterDescriptor,
    GraphBackendDescriptor,
    GraphSupport,
    KernelLevel,
    KernelReport,
    ModelDescriptor,
    ModelGeometry,
    ModelOptions,
    PolicyDescriptor,
    ProbeDescriptor,
    Requirements,
    Seen,
    SignalDescriptor,
)


def _factory(*arguments):
    raise AssertionError("a descriptor does not call its factory")


VALID = {
    ProbeDescriptor: {"name": "paged", "device_types": ("cuda",), "probe": _factory},
    DecodeStrategyDescriptor: {
        "name": "flatten",
        "requirements": Requirements(),
        "graph_support": GraphSupport.VARLEN_DECODE,
        "device_lengths": True,
        "priority": 10,
        "evidence": "executed",
        "allocate": _factory,
    },
    SignalDescriptor: {"name": "drafter", "seen": Seen.HISTORY, "reads_scores": True, "factory": _factory},
    PolicyDescriptor: {"name": "ratio", "reads": BudgetReads.HISTORY, "factory": _factory},
    GraphBackendDescriptor: {
        "name": "eager",
        "requirements": Requirements(),
        "captures": False,
        "priority": 0,
        "factory": _factory,
    },
    DrafterDescriptor: {"name": "n-gram", "seen": Seen.PREFIX, "deterministic": True, "factory": _factory},
    ModelDescriptor: {"name": "smollm2", "description": "135M", "load": _factory},
    KernelReport: {"name": "paged", "version": "1.0", "level": KernelLevel.EXECUTED, "reason": "ran"},
}
OWNERS = sorted(VALID, key=lambda kind: kind.__name__)
FIELDS = [(kind, field) for kind in OWNERS for field in VALID[kind]]


def _ids(value):
    return value.__name__ if isinstance(value, type) else str(value)


@pytest.mark.parametrize("kind", OWNERS, ids=_ids)
def test_a_valid_descriptor_builds_is_frozen_and_compares_by_value(kind):
    descriptor = kind(**VALID[kind])
    assert descriptor == kind(**VALID[kind])
    assert hash(descriptor) == hash(kind(**VALID[kind]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        descriptor.name = "other"


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=_ids)
def test_a_required_field_has_no_default(kind, field):
    fields = {name: value for name, value in VALID[kind].items() if name != field}
    with pytest.raises(TypeError, match=field):
        kind(**fields)


@pytest.mark.parametrize(("kind", "field"), FIELDS, ids=_ids)
def test_a_field_of_the_wrong_type_is_refused_by_name(kind, field):
    with pytest.raises(DescriptorError) as caught:
        kind(**{**VALID[kind], field: None})
    assert field in caught.value.problem
    if field != "reason":
        assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize(
    "name",
    ["", "Flatten", "flat_ten", "9rows", "-flatten", "flatten-", "a--b", "a b", "flatten\n", 7, b"flatten"],
)
@pytest.mark.parametrize("kind", OWNERS, ids=_ids)
def test_a_name_that_cannot_be_typed_is_refused(kind, name):
    with pytest.raises(DescriptorError, match="not a registrable name") as caught:
        kind(**{**VALID[kind], "name": name})
    assert caught.value.arrived == name


@pytest.mark.parametrize("name", ["a", "n-gram", "sm90-flatten", "v2", "a1-2b"])
def test_names_of_words_and_digits_are_fine(name):
    assert ProbeDescriptor(name, (), _factory).name == name


def test_a_result_in_place_of_a_factory_is_refused():
    with pytest.raises(DescriptorError, match=r"PolicyDescriptor\.factory cannot be called") as caught:
        PolicyDescriptor("ratio", BudgetReads.HISTORY, factory="the policy")
    assert "pass the factory, not its result" in caught.value.remedy


def test_sizes_of_a_model_are_a_geometry_or_not_said():
    assert ModelDescriptor(**VALID[ModelDescriptor]).geometry is None
    with pytest.raises(DescriptorError, match=r"ModelDescriptor\.geometry has the wrong type"):
        ModelDescriptor(**VALID[ModelDescriptor], geometry={"max_model_len": 512})


def test_a_bool_is_no_priority_and_an_int_is_no_level():
    with pytest.raises(DescriptorError, match="priority"):
        DecodeStrategyDescriptor(**{**VALID[DecodeStrategyDescriptor], "priority": True})
    with pytest.raises(DescriptorError, match="graph_support"):
        DecodeStrategyDescriptor(**{**VALID[DecodeStrategyDescriptor], "graph_support": 2})
    with pytest.raises(DescriptorError, match="seen"):
        SignalDescriptor(**{**VALID[SignalDescriptor], "seen": 1})


def test_evidence_is_one_of_three_words():
    for word in ("executed", "emulated", "compiled"):
        assert DecodeStrategyDescriptor(**{**VALID[DecodeStrategyDescriptor], "evidence": word})
    with pytest.raises(DescriptorError, match="evidence") as caught:
        DecodeStrategyDescriptor(**{**VALID[DecodeStrategyDescriptor], "evidence": "works for me"})
    assert caught.value.allowed == "executed, emulated, compiled"


def test_the_question_about_limits_is_optional_and_callable():
    assert DecodeStrategyDescriptor(**VALID[DecodeStrategyDescriptor]).supports is None
    with pytest.raises(DescriptorError, match="supports"):
        DecodeStrategyDescriptor(**VALID[DecodeStrategyDescriptor], supports=())


def test_a_strategy_may_offer_an_indexers_scores():
    assert DecodeStrategyDescriptor(**VALID[DecodeStrategyDescriptor]).logits is None
    with pytest.raises(DescriptorError, match="logits"):
        DecodeStrategyDescriptor(**VALID[DecodeStrategyDescriptor], logits=())


@pytest.mark.parametrize("value", ["cuda", ["cuda"], ("",), (1,), None])
@pytest.mark.parametrize("field", ["device_types", "architectures", "kernels", "modules"])
def test_requirements_are_tuples_of_words_and_a_bare_string_is_refused(field, value):
    with pytest.raises(DescriptorError, match=rf"Requirements\.{field}"):
        Requirements(**{field: value})


def _capability(**changed):
    fields = {
        "device_type": "cuda",
        "architecture": "sm90",
        "device_name": "H200",
        "compute_capability": (9, 0),
        "processors": 132,
        "memory_bytes": 0,
        **changed,
    }
    return Capability(**fields)


def test_requirements_list_everything_unmet_at_once():
    """Two conditions that must both hold are checked together: vllm #56620, #47808."""
    wanted = Requirements(
        device_types=("rocm", "cpu"),
        architectures=("sm100",),
        kernels=("paged", "triton"),
        modules=("no_such_module", "json", "no.such.child"),
    )
    imported = KernelReport("paged", "1", KernelLevel.IMPORTED, "wrong values")
    assert wanted.unmet(_capability(kernels=(imported,))) == (
        "device type is cuda, needs rocm or cpu",
        "architecture is sm90, needs sm100",
        "kernel paged is imported, needs executed: wrong values",
        "kernel triton is absent, needs executed: no installed probe reports 'triton'",
        "module no_such_module is not installed",
        "module no.such.child is not installed",
    )


def test_only_an_executed_kernel_counts():
    """A family, an import or a flag is no proof (design section 5)."""
    wanted = Requirements(kernels=("paged",))
    for level in KernelLevel:
        unmet = wanted.unmet(_capability(kernels=(KernelReport("paged", "", level, "why"),)))
        assert (unmet == ()) == (level is KernelLevel.EXECUTED)


def test_no_requirement_fits_every_device():
    assert Requirements().unmet(_capability()) == ()


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"device_type": "tpu"}, "device_type"),
        ({"device_type": "CUDA"}, "device_type"),
        ({"architecture": None}, "architecture"),
        ({"processors": 0}, "processors"),
        ({"processors": 1.5}, "processors"),
        ({"memory_bytes": -1}, "memory_bytes"),
    ],
)
def test_a_capability_checks_itself(changed, named):
    with pytest.raises(DescriptorError, match=named):
        _capability(**changed)


def test_a_capability_reports_each_kernel_once_and_absent_ones_in_words():
    report = KernelReport("paged", "1", KernelLevel.EXECUTED, "ran")
    capability = _capability(kernels=(report,), versions=(("torch", "2.11.0"),))
    assert capability.kernel("paged") is report
    assert capability.kernel("other").level is KernelLevel.ABSENT
    assert (capability.version("torch"), capability.version("triton")) == ("2.11.0", "")
    assert hash(capability) == hash(_capability(kernels=(report,), versions=(("torch", "2.11.0"),)))
    with pytest.raises(DescriptorError, match="twice"):
        _capability(kernels=(report, report))


@pytest.mark.parametrize(
    "size", ["layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary", "max_model_len"]
)
def test_a_model_without_a_size_is_refused(size):
    fields = dict.fromkeys(
        ["layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary", "max_model_len"], 1
    )
    assert ModelGeometry(name="toy", stop_tokens=(), **fields)
    with pytest.raises(DescriptorError, match=rf"ModelGeometry\.{size}"):
        ModelGeometry(name="toy", stop_tokens=(), **{**fields, size: 0})


def test_a_model_is_loaded_in_a_listed_dtype_only():
    assert ModelOptions().dtype == "bfloat16"
    with pytest.raises(DescriptorError, match="float32, bfloat16"):
        ModelOptions(dtype="float16")


def test_a_refused_neighbour_is_told_why():
    """The reason ends the sentence for that chip alone; the requirement stays what it was."""
    why = (("sm121", "runs other code of the library"),)
    wanted = Requirements(architectures=("sm120",), refusals=why)
    assert wanted.unmet(_capability(architecture="sm120")) == ()
    assert wanted.unmet(_capability(architecture="sm121")) == (
        "architecture is sm121, needs sm120: runs other code of the library",
    )
    assert wanted.unmet(_capability(architecture="sm90")) == ("architecture is sm90, needs sm120",)
    assert hash(wanted) != hash(Requirements(architectures=("sm120",)))


@pytest.mark.parametrize(
    "values",
    [
        {"refusals": (("sm121", "no"),)},
        {"architectures": ("sm120",), "refusals": (("sm120", "no"),)},
        {"architectures": ("sm120",), "refusals": (("sm121", ""),)},
        {"architectures": ("sm120",), "refusals": (("sm121",),)},
        {"architectures": ("sm120",), "refusals": ("sm121",)},
        {"architectures": ("sm120",), "refusals": [("sm121", "no")]},
    ],
)
def test_a_refusal_that_explains_nothing_is_an_error(values):
    with pytest.raises(DescriptorError, match=r"Requirements\.refusals"):
        Requirements(**values)


def test_an_architecture_in_capitals_could_never_match():
    with pytest.raises(DescriptorError, match="allowed: sm90"):
        Requirements(architectures=("SM90",))
