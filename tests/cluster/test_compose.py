"""The Compose file of docs/cluster.md: its settings exist, and its services make a cluster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml
from chaos.network import possible
from cluster.containers import VARIABLE, Image, Project, interpolated
from support.patroni import programs
from support.server import ROOT
from support.waiting import wait_until

from bunqueue import Queue
from bunqueue.server.settings.settings import OPTIONS, load_settings

FOLDER = ROOT / "config" / "cluster"
FILE = FOLDER / "compose.yaml"
TOKEN = "secret-token"
VARIABLES = {
    "BUNQUEUE_AUTH_TOKEN": TOKEN,
    "POSTGRES_PASSWORD": "it's",
    "REPLICATION_PASSWORD": "a secret",
    "STORE_PASSWORD": 'o"f@:/mine',
    "SHARDS": "4",
}
HOSTS = ("one", "two", "three")
TOKEN_VARIABLE = "BUNQUEUE_TOKEN"  # of clients, in a container


@pytest.fixture(scope="module")
def spec() -> dict[str, Any]:
    found: dict[str, Any] = interpolated(yaml.safe_load(FILE.read_text()), VARIABLES)
    return found


def test_what_it_asks_for_is_in_the_example_of_its_variables() -> None:
    asked = {found[1] for found in VARIABLE.finditer(FILE.read_text())}
    example = dict(
        line.split("=", 1) for line in (FOLDER / "env.example").read_text().splitlines() if "=" in line
    )
    assert asked == example.keys() == VARIABLES.keys()
    secrets = {name for name, value in example.items() if not value}
    assert secrets == VARIABLES.keys() - {"SHARDS"}, "nobody is given a secret that others know"


def test_its_services_fit_together(spec: dict[str, Any]) -> None:
    services = spec["services"]
    known = {option.variable for option in OPTIONS}
    ports = []
    for name, service in services.items():
        assert service.get("depends_on", {}).keys() <= services.keys(), name
        for volume in service.get("volumes", []):
            assert volume.split(":")[0] in spec["volumes"], name
        ours = {key for key in service["environment"] if key.startswith("BUNQUEUE_")}
        assert ours <= known | {TOKEN_VARIABLE}, name
        ports += [port.split(":")[0] for port in service.get("ports", [])]
    assert len(ports) == len({*ports}) == 2 * len(HOSTS)
    for name in HOSTS:
        image = Image(ROOT / "Dockerfile")
        environ = {**image.environ, **services[name]["environment"], "HOME": "/nowhere"}
        settings = load_settings({}, environ)
        assert settings.cluster_address == f"{services[name]['hostname']}:6791"
        assert services[name]["volumes"][0].endswith(f":{settings.data_dir}")


@pytest.mark.parametrize(
    "file", [ROOT / "Dockerfile", FOLDER / "postgres.Dockerfile"], ids=lambda file: file.name
)
def test_images_have_what_they_copy_and_a_user_of_their_own(file: Any) -> None:
    text = file.read_text()
    assert Image(file).user not in ("root", "0", "")
    ignored = (ROOT / ".dockerignore").read_text().split()
    for line in re.findall(r"(?m)^COPY (?!--from)(?:--chmod=\d+ )?(.+) \S+$", text):
        for source in line.split():
            assert (file.parent / source).exists(), source
            parts = {f"!{source}", f"!{source.partition('/')[0]}"}
            assert file.parent != ROOT or parts & {*ignored}, source


@pytest.fixture(scope="module")
def project() -> Iterator[Project]:
    if not possible():
        pytest.skip("networks cannot be made here: it needs root, and ip of iproute2")
    programs()
    with Project(FILE, VARIABLES) as running:
        yield running


def commands() -> list[list[str]]:
    """Those of docs/cluster.md that are given to Compose, once its services run."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    found = re.findall(r"(?m)^docker compose (exec|kill|start) (.+)$", page)
    return [[verb, *words.split()] for verb, words in found]


@pytest.mark.nightly  # most of a minute of programs that start
def test_it_is_a_cluster_that_survives_a_host(project: Project) -> None:
    url = f"bunqueue://{TOKEN}@" + ",".join(project.services[name].address for name in HOSTS)
    with ExitStack() as stack:
        queues = [stack.enter_context(Queue(f"q{number}", url=url)) for number in range(8)]
        for queue in queues:
            queue.add("before", 1)
        wait_until(lambda: checked(project).returncode == 0, "all is well")
        said = []
        for verb, name, *words in commands():
            service = project.services[name]
            if verb == "exec":
                done = service.run(*words)
                said.append((done.stdout, done.returncode))
                assert done.returncode in (0, 1), done.stderr
            elif verb == "kill":
                service.kill()
                for queue in queues:
                    queue.add("after", 2)
                wait_until(lambda: checked(project).returncode == 1, "it is known to be dead")
            else:
                service.start()
        (store, stored), (_, shown), (well, is_well), (ill, is_well_then) = said
        assert (stored, shown, is_well, is_well_then) == (0, 0, 0, 1)
        assert re.search(r"commits wait for pg\d to be one", store), store
        assert well.strip() == ""
        assert "the host two is dead" in ill
        for queue in queues:
            assert queue.counts().waiting == 2
        wait_until(lambda: checked(project).returncode == 0, "it is one of three again")


def checked(project: Project) -> CompletedProcess[str]:
    return project.services["one"].run("bunqueue", "cluster", "check")
