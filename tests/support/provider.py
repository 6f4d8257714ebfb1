"""An OpenID Connect provider as a process, with a few people."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import httpx2

from .server import quiet_port
from .waiting import wait_until

PEOPLE = {"anna": ["ops", "staff"], "guest": ["staff"], "stranger": ["elsewhere"]}
"""Their groups, by their names there."""


class Provider:
    """The provider."""

    def __init__(self) -> None:
        self.port = quiet_port()
        self.issuer = f"http://127.0.0.1:{self.port}"

    def tables(self, url: str, folder: Path) -> str:
        """What the file of identities in a folder says of it, for a server that browsers reach at a URL."""
        (folder / "oidc-secret").write_text("between us\n")
        return (
            '[groups]\nops = "operator"\nstaff = "viewer"\n'
            f'[oidc]\nissuer = "{self.issuer}"\nclient_id = "dashboard"\nurl = "{url}"\n'
            'client_secret_file = "oidc-secret"\n'
        )

    def start(self) -> None:
        """Returns when it answers."""
        people = [
            {"sub": sub, "email": f"{sub}@example.com", "groups": groups} for sub, groups in PEOPLE.items()
        ]
        claims = [flag for person in people for flag in ("--user-claims", json.dumps(person))]
        program = str(Path(sys.executable).parent / "oidc-provider-mock")
        command = [program, "--port", str(self.port), "--require-nonce", "true", *claims]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self._answers, "the provider answers")

    def _answers(self) -> bool:
        try:
            return httpx2.get(self.issuer + "/.well-known/openid-configuration", trust_env=False).is_success
        except httpx2.HTTPError:
            return False

    def stop(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
