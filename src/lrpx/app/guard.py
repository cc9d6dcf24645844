"""What keeps other sites away from a server on one's own machine.

1. **Host.** A page on the internet may let its own name point to 127.0.0.1 (DNS rebinding). Requests that name another host
   than this machine are refused; an address instead of a name cannot be rebound.
2. **Origin.** Other sites may send requests, though not read the answers: there are no CORS headers. What a browser says to
   come from another site is refused, and so is anything but JSON, which no form can send.
3. **Content security policy.** The page loads nothing from elsewhere, runs no inline script and cannot be framed.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests as the module says, and adds ``HEADERS`` to every answer.

    Args:
        app: What answers.
        names: Names of this machine, beside ``localhost``.
    """

    def __init__(self, app: ASGIApp, names: Collection[str] = ()) -> None:
        self.app = app
        self.names = {"localhost", *(name.lower() for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        why = self.refuses(Headers(scope=scope), scope["method"])
        answer: ASGIApp = self.app if why is None else JSONResponse({"error": why}, status_code=403)
        await answer(scope, receive, with_headers)

    def refuses(self, headers: Headers, method: str) -> str | None:
        """Why a request is not answered, or ``None``."""
        host = headers.get("host", "")
        if (name := host_name(host)) is None or not (name in self.names or _is_address(name)):
            return f"this is not {host[:100]!r}. If the name is this machine's: lrpx app --allow-host NAME"
        if method in ("GET", "HEAD"):
            return None
        if "origin" in headers and urlsplit(headers["origin"]).netloc.lower() != host.lower():
            return "requests of other sites are not answered."
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return "requests of other sites are not answered."
        if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            return "a question is JSON: Content-Type: application/json"
        return None


def host_name(host: str) -> str | None:
    """The name or address in a ``Host`` header, without the port; ``None`` if it is none."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment:
        return None
    return parts.hostname


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
