"""What protects people whose browser can reach a port, and HEAD.

A name of another site may lead a browser to a loopback address (DNS rebinding), and then its scripts read every answer. So only
the service's own names are answered. A script cannot give the request another Host, or a header that begins with Sec-.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from http import HTTPStatus
from typing import Final

import structlog
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.runtime.connections import CallerLog, owner_of
from app.runtime.printable import printable
from app.settings import NO_BROWSER

log = CallerLog(structlog.get_logger("http"))

HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_LOCALHOST: Final = "localhost"


class BrowserRules:
    """An application whose answers only its own pages can read, and which answers HEAD as GET.

    Args:
        hosts: names in Host that are answered, besides localhost and IP addresses; None: every one, for answers that name no object
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str] | None = None) -> None:
        self._app = app
        names = () if hosts is None else (_canonical(host) for host in hosts if not _is_address(host))
        self._hosts = None if hosts is None else {_LOCALHOST, *names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        host = next((host for host in headers.getlist("host") if not self._answers_to(host)), None)
        if host is not None and NO_BROWSER not in headers:
            await self._refuse(host, scope, receive, send)
            return
        if scope["method"] not in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer.setdefault(name, value)
            await send(message)

        # The server leaves out the body of an answer to HEAD.
        await self._app({**scope, "method": "GET"}, receive, send_with_headers)

    def _answers_to(self, host: str) -> bool:
        if self._hosts is None:
            return True
        name = _canonical(host)
        return name in self._hosts or _is_address(name)

    async def _refuse(self, host: str, scope: Scope, receive: Receive, send: Send) -> None:
        text = f"Host is {printable(host)}, which is no name of this service; see serve --allowed-host"
        client = scope.get("client")
        log.warning(
            "refused request", client=owner_of(client[0]) if client else "", path=scope["path"], status=421, error=text
        )
        # The unread body must not be read as the next request.
        answer = JSONResponse({"error": text}, HTTPStatus.MISDIRECTED_REQUEST, headers={"Connection": "close"})
        await answer(scope, receive, send)


def _canonical(host: str) -> str:
    """Returns a host without its port, in lower case."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.removesuffix(".").lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
