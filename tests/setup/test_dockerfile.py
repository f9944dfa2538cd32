"""The image that the Dockerfile describes, as far as it can be seen without building it."""

from __future__ import annotations

import re

from modules import __version__
from modules.run.kubernetes.request import CODE, HOME, KubernetesRequest, Volume
from tests.runs import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")


def instructions(name: str) -> list[str]:
    return re.findall(rf"^{name}\s+(.*)$", DOCKERFILE, re.MULTILINE)


def test_its_labels_carry_the_version() -> None:
    [labels] = instructions("LABEL")
    assert f'org.opencontainers.image.version="{__version__}"' in labels


def test_a_folder_in_the_volume_does_not_take_the_place_of_tandem() -> None:
    """`python -m tandem` begins in /work, which Python would otherwise search first."""
    assert any("PYTHONSAFEPATH=1" in line.split() for line in instructions("ENV"))


def test_pods_find_in_it_what_the_manifests_name() -> None:
    request = KubernetesRequest("x", (Volume("work", "/work"),), 1)
    assert instructions("USER") == [f"{request.user}:{request.user}"]
    assert f"--uid {request.user} --create-home {HOME.rpartition('/')[2]}" in DOCKERFILE
    assert f"COPY scripts {CODE}/scripts" in DOCKERFILE


def test_all_that_it_copies_is_there_and_sent_to_the_builder() -> None:
    copied = {name for line in instructions("COPY") for name in line.split()[:-1]}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").split()
    assert {name.removeprefix("!") for name in ignored if name.startswith("!")} == copied
    assert all((ROOT / name).exists() for name in copied)


def test_a_change_of_the_code_installs_no_package_again() -> None:
    last_package = DOCKERFILE.rindex("RUN pip install")
    assert instructions("COPY")[0].startswith("requirements.lock")
    assert all(DOCKERFILE.index(f"COPY {name}") > last_package for name in ("app", "modules", "scripts"))
