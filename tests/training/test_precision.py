import pytest
import torch

from posenc.core.errors import UserError
from posenc.training import precision
from posenc.training.precision import autocast, has_hardware_bf16, resolve_device, resolve_precision

CPU = torch.device("cpu")


@pytest.mark.parametrize(("able", "expected"), [(True, "bf16"), (False, "fp32")])
def test_auto_is_bf16_where_the_hardware_has_it(
    monkeypatch: pytest.MonkeyPatch, able: bool, expected: str
) -> None:
    monkeypatch.setattr(precision, "has_hardware_bf16", lambda _: able)
    assert resolve_precision("auto", CPU) == expected
    assert resolve_precision("fp32", CPU) == "fp32"
    assert resolve_precision("bf16", CPU) == "bf16"


@pytest.mark.parametrize(
    ("able", "expected"),
    [({"avx512_bf16": True}, True), ({"amx_bf16": True}, True), ({"avx512_f": True}, False), ({}, False)],
)
def test_a_cpu_has_bf16_when_it_says_so(
    monkeypatch: pytest.MonkeyPatch, able: dict[str, bool], expected: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert has_hardware_bf16(CPU) is expected


def test_a_device_that_is_not_there_names_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert resolve_device("cuda:1") == torch.device("cuda:1")
    assert resolve_device("auto") == torch.device("cuda")
    with pytest.raises(UserError) as caught:
        resolve_device("cuda:2")
    assert caught.value.key == "device" and {"auto", "cpu", "cuda:0", "cuda:1"} <= set(caught.value.allowed)


def test_without_accelerator_auto_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert resolve_device("auto") == CPU
    with pytest.raises(UserError, match="no such device"):
        resolve_device("cuda")
    with pytest.raises(UserError, match="no such device"):
        resolve_device("mps")


@pytest.mark.parametrize(("name", "dtype"), [("bf16", torch.bfloat16), ("fp32", torch.float32)])
def test_products_run_in_the_named_precision(name: str, dtype: torch.dtype) -> None:
    x = torch.ones(2, 2)
    with autocast(name, CPU):
        assert (x @ x).dtype == dtype
