"""The services of a Compose file as processes of this machine, where no containers can be made.

Each has what a container would give it: a network, a host name, the names of the others, the volumes, the
files that its Dockerfile copies, the user and the variables; and nothing of this machine's environment.
Needs root, as `chaos.network` does.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from chaos.network import CLIENTS, Network
from support.procfs import kill_tree
from support.server import PROGRAM, ROOT
from support.waiting import wait_until

STARTS_S = 180.0  # mostly initdb, on a machine whose disk is busy
STEP_S = 0.5  # between two health checks, each of which is a program
SOURCE = Path("/mnt")  # where the source tree is seen
MAY_READ = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # Python, in a home perhaps
VARIABLE = re.compile(r"\$\{(\w+):\?[^}]*\}")


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """``${NAME:?text}`` as Compose replaces it; KeyError for one that is not given."""
    if isinstance(value, dict):
        return {key: interpolated(each, variables) for key, each in value.items()}
    if isinstance(value, list):
        return [interpolated(each, variables) for each in value]
    return VARIABLE.sub(lambda found: variables[found[1]], value) if isinstance(value, str) else value


class Image:
    """What a Dockerfile says of its last stage."""

    def __init__(self, file: Path) -> None:
        text = file.read_text().replace("\\\n", " ")
        self.last = text[text.rindex("\nFROM ") :]
        self.file, self.user = file, self._words("USER")[-1]
        self.environ = dict(word.split("=", 1) for word in self._words("ENV"))
        entry = self._words("ENTRYPOINT")
        self.entrypoint: list[str] = json.loads(" ".join(entry)) if entry else []

    def _words(self, instruction: str) -> list[str]:
        found = re.findall(rf"(?m)^{instruction} (.*)$", self.last)
        return found[-1].split() if found else []

    def copied(self) -> dict[Path, str]:
        """Files of the build's context, and where they are in the image."""
        lines = re.findall(r"(?m)^COPY (?!--from)(?:--chmod=\d+ )?(\S+) (\S+)$", self.last)
        return {self.file.parent / source: target for source, target in lines}


class Service:
    """One service: it can be started, killed and started again."""

    def __init__(self, project: Project, name: str, spec: dict[str, Any], number: int) -> None:
        self.name, self.spec, self._project = name, spec, project
        self.address = project.network.address(CLIENTS, number)
        self._inside = project.network.inside(number)
        context = project.file.parent / spec["build"]["context"]
        self.image = Image(context.resolve() / spec["build"].get("dockerfile", "Dockerfile"))
        self._folder = project.folder / name
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def command(self) -> list[str]:
        return [*self.spec.get("entrypoint", self.image.entrypoint), *self.spec["command"]]

    @property
    def environ(self) -> dict[str, str]:
        """That of its processes, and nothing else."""
        path = f"/opt:{os.environ['PATH']}"
        given = {**self.image.environ, **self.spec.get("environment", {})}
        return {**given, "PATH": path, "LANG": "C.UTF-8", "PYTHONPATH": str(SOURCE)}

    def _mounts(self) -> list[str]:
        """Shell commands that give it its files."""
        lines = [f"mount --bind {ROOT} {SOURCE}", f"mount --bind {self._project.programs} /opt"]
        lines.append(f"mount --bind {self._project.names} /etc/hosts")
        for source, target in self.image.copied().items():
            place = self._folder / "copied"
            place.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, place / Path(target).name)
            lines.append(f"mount --bind {place} {Path(target).parent}")
        folder = self._folder / "volumes"
        for volume in self.spec.get("volumes", []):
            _, target = volume.split(":")
            place = folder / Path(target).name
            place.mkdir(parents=True, exist_ok=True)
            shutil.chown(place, int(self._user()), int(self._user("group")))
            lines.append(f"mount --bind {folder} {Path(target).parent}")
        return [*dict.fromkeys(lines), "mount -t tmpfs -o mode=1777 tmpfs /tmp", "cd /"]

    def _user(self, kind: str = "passwd") -> str:
        """The number of the image's user or group: by name, or by what its Dockerfile says."""
        made = re.search(rf"useradd .*--uid (\d+) .*{self.image.user}\b", self.image.last)
        if made:
            return made[1]
        found = subprocess.run(["getent", kind, self.image.user], check=True, capture_output=True, text=True)
        return found.stdout.split(":")[2]

    def _as_user(self, words: list[str]) -> list[str]:
        environ = [f"{key}={value}" for key, value in self.environ.items()]
        who = ("--reuid", self._user(), "--regid", self._user("group"), "--clear-groups")
        return ["setpriv", *who, *MAY_READ, "env", "-i", *environ, *words]

    def start(self) -> None:
        script = [*self._mounts(), f"hostname {self.spec.get('hostname', self.name)}", 'exec "$@"']
        words = [*self._inside, "unshare", "--mount", "--uts", "sh", "-ec", "\n".join(script), "sh"]
        with (self._project.folder / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*words, *self._as_user(self.command)], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def run(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as `docker compose exec` does."""
        assert self.process is not None
        inside = ("nsenter", "--target", str(self.process.pid), "--mount", "--net", "--uts")
        more = [f"{key}={value}" for key, value in environ.items()]
        command = [*inside, *self._as_user(["env", *more, *words])]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def is_healthy(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"{self.name} has ended:\n{self.log()}"
        kind, *words = self.spec["healthcheck"]["test"]
        assert kind == "CMD"
        return self.run(*words).returncode == 0

    def has_completed(self) -> bool:
        """Whether it has ended well.  It is started again when it has not, as `restart: on-failure` says."""
        assert self.process is not None
        if (status := self.process.poll()) and self.spec["restart"] == "on-failure":
            self.start()
        return status == 0

    def kill(self) -> None:
        if self.process is not None:
            kill_tree(self.process.pid)
            self.process.wait()
            self.process = None

    def log(self) -> str:
        return (self._project.folder / f"{self.name}.log").read_text()[-3000:]


class Project:
    """All services of a Compose file."""

    def __init__(self, file: Path, variables: Mapping[str, str]) -> None:
        self.file = file
        self.folder = Path(tempfile.mkdtemp(prefix="bunqueue-compose-"))
        self.folder.chmod(0o755)
        specs = interpolated(yaml.safe_load(file.read_text()), variables)["services"]
        self.network = Network(len(specs))
        self.services = {
            name: Service(self, name, spec, number) for number, (name, spec) in enumerate(specs.items())
        }
        self.names = self.folder / "hosts"
        lines = [f"{service.address} {name}" for name, service in self.services.items()]
        self.names.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        self.programs = self.folder / "programs"
        self._install()

    def _install(self) -> None:
        """`bunqueue` as the image has it: this source tree's."""
        self.programs.mkdir()
        python = Path(sys.executable)
        seen = SOURCE / python.relative_to(ROOT) if python.is_relative_to(ROOT) else python
        program = self.programs / "bunqueue"
        program.write_text(f"#!/bin/sh\nexec {seen} -c '{PROGRAM}' \"$@\"\n")
        program.chmod(0o755)

    def __enter__(self) -> Project:
        try:
            self.network.__enter__()
            for service in self.services.values():
                self._until_needed_are_there(service)
                service.start()
            for name in self.services:
                self._until(name, "service_healthy")
        except BaseException:
            for service in self.services.values():
                with contextlib.suppress(OSError):
                    print(f"---- {service.name}", service.log(), sep="\n")
            self.__exit__()
            raise
        return self

    def _until_needed_are_there(self, service: Service) -> None:
        for name, need in service.spec.get("depends_on", {}).items():
            self._until(name, need["condition"])

    def _until(self, name: str, condition: str) -> None:
        service = self.services[name]
        if condition == "service_completed_successfully":
            wait_until(service.has_completed, f"{name} has completed", STARTS_S)
        elif "healthcheck" in service.spec:
            wait_until(service.is_healthy, f"{name} is healthy", STARTS_S, STEP_S)

    def __exit__(self, *_: object) -> None:
        for service in reversed(self.services.values()):
            service.kill()
        self.network.__exit__()
        shutil.rmtree(self.folder, ignore_errors=True)
