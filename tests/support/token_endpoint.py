"""A token endpoint of OpenID Connect: it gives JWTs for client credentials, over TLS."""

import base64
import json
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs

from joserfc import jwt
from joserfc.jwk import RSAKey

from ackline.local.connection import LOOPBACK
from tests.support.certificates import Issued

CLIENT_ID, CLIENT_SECRET = "client-of-the-tests", "the+secret/of%20the=client"
AUDIENCE, SCOPE = "kafka", "replays"


class TokenEndpoint:
    """The endpoint at `url`. Its tokens are for `subject` and are valid for `life` seconds."""

    def __init__(self, subject: str, issued: Issued, folder: Path) -> None:
        self._subject = subject
        self._key = RSAKey.generate_key(2048, {"kid": "of-the-tests", "alg": "RS256", "use": "sig"})
        self.life = 300
        self.given: list[str] = []
        """The tokens that were given."""
        self.refuses: str | None = None
        """The beginning of the `User-Agent` of clients that get no token."""
        self.jwks = folder / "jwks.json"
        self.jwks.write_text(json.dumps({"keys": [self._key.as_dict(private=False)]}))
        self._server = ThreadingHTTPServer((LOOPBACK, 0), self._handler())
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*issued.write(folder, "endpoint"))
        self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self._thread: Thread | None = None
        self.url = f"https://{LOOPBACK}:{self._server.server_port}/realms/tests/token"

    def start(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._server.serve_forever, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread = None

    def _token(self, scope: str) -> str:
        now = int(time.time())
        claims = {"sub": self._subject, "aud": AUDIENCE, "scope": scope, "iat": now, "exp": now + self.life}
        return jwt.encode({"alg": "RS256", "kid": "of-the-tests"}, claims, self._key)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                agent = self.headers.get("User-Agent", "")
                form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
                login = base64.b64decode(self.headers.get("Authorization", "").removeprefix("Basic ")).decode()
                if login != f"{CLIENT_ID}:{CLIENT_SECRET}" or (endpoint.refuses and agent.startswith(endpoint.refuses)):
                    self._answer(401, {"error": "invalid_client"})
                elif form.get("grant_type") != ["client_credentials"] or form.get("scope") != [SCOPE]:
                    self._answer(400, {"error": "invalid_request"})
                else:
                    token = endpoint._token(SCOPE)
                    endpoint.given.append(token)
                    self._answer(200, {"access_token": token, "token_type": "Bearer", "expires_in": endpoint.life})

            def _answer(self, status: int, body: object) -> None:
                content = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        return Handler
