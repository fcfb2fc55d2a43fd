"""TLS on real sockets: one handshake between a certificate and a client that verifies it."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import suppress

from cryptography import x509

from app.extender.certificates import ServingPair, server_context


def client_context(bundle: bytes, *, strict: bool = True) -> ssl.SSLContext:
    """A client that trusts a bundle of authorities and nothing else; a strict one applies every rule that OpenSSL has."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=bundle.decode())
    if strict:
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    return context


def shake_hands(serving: ServingPair, bundle: bytes, host: str) -> int:
    """Returns the serial number of the certificate that a client was shown and accepted."""
    server = server_context(serving)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_accept, args=(listener, server))
        thread.start()
        try:
            return serial_shown(listener.getsockname()[1], client_context(bundle), host)
        finally:
            thread.join()


def shake_hands_in_memory(server: ssl.SSLContext, client: ssl.SSLContext, host: str) -> str:
    """Returns the version of TLS that both ends agree on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = server.wrap_bio(to_server, to_client, server_side=True)
    calling = client.wrap_bio(to_client, to_server, server_hostname=host)
    # The caller's certificate is verified last.
    for end in (calling, accepting, calling, accepting):
        with suppress(ssl.SSLWantReadError):
            end.do_handshake()
    return str(accepting.version())


def serial_shown(port: int, client: ssl.SSLContext, host: str) -> int:
    """Returns the serial number of the certificate that a client is shown at a port of this machine, and accepts."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as connection,
        client.wrap_socket(connection, server_hostname=host) as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def _accept(listener: socket.socket, context: ssl.SSLContext) -> None:
    accepted, _ = listener.accept()
    with accepted:
        try:
            context.wrap_socket(accepted, server_side=True).close()
        except OSError:
            # The client refused the certificate, and says so itself.
            return
