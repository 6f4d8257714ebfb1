"""An OpenID Connect provider: where it sends people, and whom it says they are.

The authorization code goes over the browser, the tokens do not. The proof key (PKCE) makes a stolen code
useless, the state ties the answer to the browser that asked, and the nonce ties the identity token to both.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.httpx_client import AsyncOAuth2Client
from httpx import AsyncClient, HTTPError
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from bunqueue.server.identities.people import OidcRow

DISCOVERY = "/.well-known/openid-configuration"
ALGORITHMS = [
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
    "Ed25519",
]
"""Signatures with keys that only the provider has; never none, or one with the client's secret."""
TIMEOUT_S = 10.0
FRESH_S = 600.0  # that long its addresses and keys are used without asking again
AGAIN_S = 5.0  # between two tries to reach it: anybody may ask for a sign-in
LEEWAY_S = 60  # by which clocks may differ


class ProviderError(Exception):
    """The provider cannot be reached, or says what cannot be true."""


class Person(NamedTuple):
    """Who has signed in."""

    name: object
    groups: list[str]


class Provider:
    """One provider, as the file names it."""

    def __init__(self, row: OidcRow, secret: str) -> None:
        self.row, self.secret = row, secret
        self._asking = asyncio.Lock()
        self._metadata: dict[str, Any] = {}
        self._keys = KeySet([])
        self._until, self._problem = 0.0, ""

    async def address(self, state: str, nonce: str, verifier: str) -> str:
        """Where to send a browser. Raises ProviderError."""
        await self._ask()
        async with self._client() as client:
            url, _ = client.create_authorization_url(
                self._metadata["authorization_endpoint"], state=state, nonce=nonce, code_verifier=verifier
            )
        return str(url)

    async def person(self, code: str, nonce: str, verifier: str) -> Person:
        """Who has come back with this code. Raises ProviderError."""
        await self._ask()
        try:
            async with self._client() as client:
                tokens = await client.fetch_token(
                    self._metadata["token_endpoint"], code=code, code_verifier=verifier
                )
                claims = self._claims(tokens.get("id_token"), nonce)
                more = self._metadata.get("userinfo_endpoint")
                if self.row.groups_claim not in claims and more:
                    told = (await client.get(more)).raise_for_status().json()
                    if told.get("sub") == claims["sub"]:
                        claims = {**told, **claims}
        except (HTTPError, OAuthError, JoseError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ProviderError(f"{type(error).__name__}: {error}"[:300]) from None
        groups = claims.get(self.row.groups_claim, [])
        some = [groups] if isinstance(groups, str) else groups if isinstance(groups, list) else []
        return Person(self._name(claims), [each for each in some if isinstance(each, str)])

    def _name(self, claims: dict[str, Any]) -> object:
        """An address that nobody has verified may be somebody else's."""
        claim = self.row.user_claim
        is_doubtful = claim == "email" and claims.get("email_verified") is False
        return (None if is_doubtful else claims.get(claim)) or claims["sub"]

    def _claims(self, token: object, nonce: str) -> dict[str, Any]:
        found = jwt.decode(str(token), self._keys, algorithms=ALGORITHMS)
        jwt.JWTClaimsRegistry(
            leeway=LEEWAY_S,
            iss={"essential": True, "value": self._metadata["issuer"]},
            aud={"essential": True, "value": self.row.client_id},
            exp={"essential": True},
            sub={"essential": True},
            nonce={"essential": True, "value": nonce},
        ).validate(found.claims)
        if found.claims.get("azp", self.row.client_id) != self.row.client_id:
            raise ValueError("azp: the identity token is for another client")
        return dict(found.claims)

    async def _ask(self) -> None:
        """Have the provider's addresses and keys. Raises ProviderError."""
        async with self._asking:
            if time.monotonic() >= self._until:
                try:
                    await self._read()
                    self._until, self._problem = time.monotonic() + FRESH_S, ""
                except (HTTPError, JoseError, ValueError, KeyError, TypeError) as error:
                    self._until = time.monotonic() + AGAIN_S
                    self._problem = f"{self.row.issuer}: {type(error).__name__}: {error}"[:300]
            if self._problem:
                raise ProviderError(self._problem)

    async def _read(self) -> None:
        async with AsyncClient(timeout=TIMEOUT_S) as client:
            found = (await client.get(self.row.issuer + DISCOVERY)).raise_for_status().json()
            if found["issuer"].rstrip("/") != self.row.issuer:
                raise ValueError(f"it calls itself {found['issuer']}")
            keys = (await client.get(found["jwks_uri"])).raise_for_status().json()
        self._metadata, self._keys = found, KeySet.import_key_set(keys)

    def _client(self) -> Any:
        row = self.row
        return AsyncOAuth2Client(
            row.client_id,
            self.secret or None,
            token_endpoint_auth_method="client_secret_basic" if self.secret else "none",
            scope=" ".join(row.scopes),
            redirect_uri=row.url + "/oidc/callback",
            code_challenge_method="S256",
            timeout=TIMEOUT_S,
        )
