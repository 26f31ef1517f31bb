"""Parameters of virtual hosts and of the cluster, and virtual hosts that are protected from deletion."""

from __future__ import annotations

import re

import pytest

from qq.machine.catalog import catalog
from qq.machine.catalog.limits import PARAMETER_BYTES_MAX
from qq.machine.machine import QueueMachine
from qq.machine.protocol import commands as c
from qq.machine.protocol.refusals import Refused
from tests.machine.machine_driver import Driver, declare, reloaded

PARAMETER = c.PutParameter("/", "component", "name", '{"a": 1}')
GLOBAL = c.PutGlobalParameter("cluster_name", '"blue"')
LONG = "x" * (PARAMETER_BYTES_MAX + 1)


@pytest.fixture
def driver() -> Driver:
    driver = Driver()
    driver.machine.raise_to(8)
    return driver


def parameters(driver: Driver) -> tuple[dict[tuple[str, str], str], dict[str, str]]:
    """Return the parameters of the virtual host "/" and of the cluster, equal after a reload."""
    machines = (driver.machine, reloaded(driver.machine))
    first, second = [(m.vhosts["/"].parameters, m.catalog.global_parameters) for m in machines]
    assert first == second
    return first


def test_parameters_are_set_replaced_and_deleted(driver: Driver) -> None:
    driver.apply(PARAMETER, GLOBAL, PARAMETER._replace(name="other", value="1"))
    driver.apply(PARAMETER._replace(value="2"), GLOBAL._replace(value='"green"'))
    set_ = {("component", "name"): "2", ("component", "other"): "1"}
    assert parameters(driver) == (set_, {"cluster_name": '"green"'})
    driver.apply(c.DeleteParameter("/", "component", "name"), c.DeleteGlobalParameter("cluster_name"))
    assert parameters(driver) == ({("component", "other"): "1"}, {})


def test_missing_parameters_are_neither_set_nor_deleted(driver: Driver) -> None:
    before = driver.machine.digest()
    driver.apply(PARAMETER._replace(vhost="other"), c.ProtectVhost("other", True))
    driver.apply(c.DeleteParameter("other", "component", "name"), c.DeleteParameter("/", "a", "b"))
    driver.apply(c.DeleteGlobalParameter("cluster_name"))
    assert driver.machine.digest() == before


def test_parameters_are_deleted_with_their_virtual_host(driver: Driver) -> None:
    driver.apply(c.PutVhost("v", "", [], ""), PARAMETER._replace(vhost="v"), c.DeleteVhost("v"))
    driver.apply(c.PutVhost("v", "", [], ""))
    assert driver.machine.vhosts["v"].parameters == {}


@pytest.mark.parametrize("where", ["vhost '/'", "the cluster"])
def test_parameters_are_limited_in_number(
    driver: Driver, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "PARAMETERS_MAX", 2)

    def put(name: str, value: str = "1") -> c.PutParameter | c.PutGlobalParameter:
        put = PARAMETER if where == "vhost '/'" else GLOBAL
        return put._replace(name=name, value=value)

    driver.apply(put("a"), put("b"))
    with pytest.raises(Refused, match=re.escape(f"limit max-parameters (2) of {where} is reached")):
        driver.machine.catalog.check_room(put("c"))
    before = driver.machine.digest()
    driver.apply(put("c"))
    assert driver.machine.digest() == before
    driver.apply(put("b", "2"))  # it is there already
    assert driver.machine.digest() != before


@pytest.mark.parametrize("command", [PARAMETER, GLOBAL])
def test_parameter_value_is_limited_in_length(
    driver: Driver, command: c.PutParameter | c.PutGlobalParameter
) -> None:
    with pytest.raises(Refused, match=f"the value takes {len(LONG)} bytes, the limit is {len(LONG) - 1}"):
        driver.machine.catalog.check_room(command._replace(value=LONG))
    driver.apply(command._replace(value=LONG))
    assert parameters(driver) == ({}, {})
    driver.apply(command._replace(value=LONG[1:]))
    assert parameters(driver) != ({}, {})


def test_a_protected_virtual_host_is_not_deleted(driver: Driver) -> None:
    driver.apply(declare("q"), c.ProtectVhost("/", True))
    with pytest.raises(
        Refused, match="Refusing to delete virtual host '/' because it is protected from deletion"
    ):
        driver.machine.catalog.check_room(c.DeleteVhost("/"))
    driver.machine.adopt(driver.machine.read(driver.machine.dump()))
    driver.apply(c.DeleteVhost("/"), c.PutVhost("/", "described anew", [], ""))
    assert list(driver.machine.vhosts["/"].queues) == ["q"]
    driver.apply(c.ProtectVhost("/", False), c.DeleteVhost("/"))
    assert driver.machine.vhosts == {}


def test_raised_machine_has_no_parameters_and_no_protection() -> None:
    machine = QueueMachine()
    assert machine.version < 8
    machine.adopt(machine.read(machine.dump()))
    machine.raise_to(8)
    machine.adopt(machine.read(machine.dump()))
    vhost = machine.vhosts["/"]
    assert (vhost.is_protected, vhost.parameters, machine.catalog.global_parameters) == (False, {}, {})
