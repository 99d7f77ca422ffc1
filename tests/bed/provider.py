"""An identity provider for a story: gives tokens to clients that show their secret (OAuth 2, `client_credentials`).

    provider.py HOST FOLDER SECONDS CLIENT SECRET

FOLDER has `provider.pem` and `provider.key`, which it shows, and gets `jwks.json`, which its tokens are signed as. A token
is good for SECONDS. It prints its port, then each token's client as it is given, and ends with its standard input.
"""

import json
import ssl
import sys
import threading
from pathlib import Path

from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.jose import JsonWebKey
from authlib.oauth2.rfc6749 import ClientMixin
from authlib.oauth2.rfc6749.grants import ClientCredentialsGrant
from authlib.oauth2.rfc9068 import JWTBearerTokenGenerator
from flask import Flask
from werkzeug.serving import make_server

ISSUER, AUDIENCE, SCOPE = "https://provider.bed", "kafka", "kafka"
HOST, FOLDER, SECONDS, CLIENT, SECRET = sys.argv[1:]


class Client(ClientMixin):
    """The only one that it knows."""

    client_id = CLIENT

    def get_client_id(self):
        return CLIENT

    def get_allowed_scope(self, scope):
        return scope if scope == SCOPE else ""

    def check_client_secret(self, client_secret):
        return client_secret == SECRET

    def check_endpoint_auth_method(self, method, endpoint):
        return method == "client_secret_basic"

    def check_grant_type(self, grant_type):
        return grant_type == ClientCredentialsGrant.GRANT_TYPE


class Tokens(JWTBearerTokenGenerator):
    """Signs them."""

    def get_jwks(self):
        return KEY.as_dict(is_private=True)

    def get_audiences(self, client, user, scope):
        return [AUDIENCE]


KEY = JsonWebKey.generate_key("RSA", 2048, {"kid": "1", "use": "sig", "alg": "RS256"}, is_private=True)
(Path(FOLDER) / "jwks.json").write_text(json.dumps({"keys": [KEY.as_dict(is_private=False)]}))

app = Flask("provider")
server = AuthorizationServer(
    app, query_client=lambda name: Client() if name == CLIENT else None, save_token=lambda token, request: None
)
server.register_grant(ClientCredentialsGrant)
server.register_token_generator("default", Tokens(ISSUER, expires_generator=lambda client, grant: int(SECONDS)))


@app.post("/token")
def token():
    answer = server.create_token_response()
    if answer.status_code == 200:
        print(CLIENT, flush=True)
    return answer


tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
tls.load_cert_chain(Path(FOLDER) / "provider.pem", Path(FOLDER) / "provider.key")
http = make_server(HOST, 0, app, threaded=True, ssl_context=tls)
print(http.server_port, flush=True)
threading.Thread(target=http.serve_forever, daemon=True).start()
sys.stdin.read()
