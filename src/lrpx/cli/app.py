"""``lrpx app``: the web app, on this machine."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from ..errors import InputError, import_optional
from . import options
from .wording import NOTE, tell

if TYPE_CHECKING:
    from starlette.applications import Starlette


def app(
    context: typer.Context,
    model: options.ModelOption = options.DEFAULT_MODEL,
    dtype: options.DtypeOption = None,
    device: options.DeviceOption = None,
    device_map: options.DeviceMapOption = None,
    attn_implementation: options.AttentionOption = None,
    revision: options.RevisionOption = None,
    token: options.TokenOption = None,
    benchmark: Annotated[
        Path | None, typer.Option("--benchmark", metavar="DIR", help="A benchmark to browse, of lrpx benchmark build.")
    ] = None,
    records: Annotated[
        Path | None,
        typer.Option(
            "--records",
            metavar="RUN",
            help="Its records by lrpx evaluate: which predictions were wrong, and the scores.",
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="N", help="Longer inputs are refused, with a message.")
    ] = 512,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", help="So many tokens are generated at most.")
    ] = 64,
    host: Annotated[
        str,
        typer.Option(
            "--host", metavar="ADDRESS", help="Who can reach the app. Default: programs on this machine only."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="0: any that is free.")] = 7860,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Another name of this machine, under which it may be asked. Repeatable.",
        ),
    ] = None,
    verbose: options.VerboseOption = False,
) -> None:
    """Explore a model in the browser: type a text, choose a prediction, compare methods, look at layers and heads.

    [b]lrpx app[/b]

    [b]lrpx app --model openai-community/gpt2 --benchmark sva --records runs[/b]

    Nothing is sent to other machines. Ctrl+C ends it.
    """
    options.set_logging(verbose)
    for name in ("starlette", "uvicorn"):
        import_optional(name, "lrpx app", extra="app")

    from ..app.desk import Desk, Limits
    from ..app.samples import Samples
    from ..app.server import build
    from ..explainer import Explainer
    from ..models.loading import load

    limits = Limits(max_tokens, max_new_tokens)
    if records is not None and benchmark is None:
        raise InputError("--records are those of a benchmark: give --benchmark DIR too.")
    listening = _listen(host, port)
    with listening:
        loaded, reader = load(
            model,
            dtype=dtype,
            device=device,
            device_map=device_map,
            attn_implementation=attn_implementation,
            revision=revision,
            token=token,
        )
        explainer = Explainer(loaded, reader)
        samples = None if benchmark is None else Samples(explainer, benchmark, records)
        names = {*(allow_host or ()), *_names_of(host)}
        if not is_loopback(host):
            tell(
                NOTE,
                f"everyone who can reach {host} can use this app: there is no password, and what is typed is not encrypted.",
                context.find_root().command,
            )
        address = f"[{host}]" if ":" in host else host
        listening.listen()  # so that whoever reads the address is answered, as soon as the server runs
        typer.echo(f"lrpx app: http://{address}:{listening.getsockname()[1]}  (Ctrl+C ends it)")
        _serve(build(Desk(explainer, limits, samples), names), listening)


def _serve(application: Starlette, listening: socket.socket) -> None:
    """Answer until a signal ends the process, at once: a thread that computes cannot be stopped, and leaves nothing behind."""
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            os._exit(128 + sig)  # as shells have it

    Server(uvicorn.Config(application, log_level="warning", access_log=False)).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """A socket at an address, before a model is loaded.

    Raises:
        InputError: The address is not this machine's, or the port is taken.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        why = error.strerror or str(error)
        of_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        advice = (
            "Give a name or address of this machine: --host 127.0.0.1"
            if of_host
            else "--port 0 takes any that is free."
        )
        given = f"--host {host}" if of_host else f"--host {host} --port {port}"
        raise InputError(f"{given}: {why[:1].lower()}{why[1:]}. {advice}") from None
    return listening


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names_of(host: str) -> set[str]:
    """The names under which an app at this address may be asked, beside localhost and addresses."""
    try:
        everywhere = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return {host}
    return {socket.gethostname(), socket.getfqdn()} if everywhere else set()
