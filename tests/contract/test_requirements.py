"""pyproject.toml, environment.yml and requirements.lock say the same."""

from __future__ import annotations

import tomllib

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


@pytest.fixture(scope="module")
def project(repository):
    return tomllib.loads((repository / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def declared(project):
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *extras["lab"], *extras["dev"], *extras["docs"]]


@pytest.fixture(scope="module")
def locked(repository):
    lines = (repository / "requirements.lock").read_text().splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): pin for pin in pins}


def test_core_is_small(project):
    names = {canonicalize_name(Requirement(text).name) for text in project["dependencies"]}
    assert names == {"torch", "numpy", "safetensors", "msgspec", "click", "tqdm"}


def test_environment_yml_equals_pyproject(repository, project, declared):
    environment = yaml.safe_load((repository / "environment.yml").read_text())
    conda = environment["dependencies"][:-1]
    pip = environment["dependencies"][-1]["pip"]
    assert f"python{project['requires-python']}" in conda
    assert pip[:-1] == declared
    assert pip[-1] == "--no-deps -e ."


def test_the_lock_pins_exact_versions_that_satisfy_pyproject(declared, locked):
    for pin in locked.values():
        assert [spec.operator for spec in pin.specifier] == ["=="], pin
    for text in declared:
        wanted = Requirement(text)
        pin = locked[canonicalize_name(wanted.name)]
        (version,) = (spec.version for spec in pin.specifier)
        assert wanted.specifier.contains(version), f"{text} is locked to {version}"


def test_torch_is_locked_without_a_local_tag(locked):
    assert "+" not in str(locked["torch"].specifier)
