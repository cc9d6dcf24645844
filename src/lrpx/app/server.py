"""The HTTP side: the files of the page, and ``POST /api/NAME``, whose answers are events, one JSON object per line.

An answer begins at once: with the place in the queue, then with what is found, piece by piece. Its last event is ``end`` or
``error``. If the client leaves, the question leaves the queue; what is being computed then is finished and thrown away.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from importlib import resources
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..errors import InputError, LrpxError
from ..heatmap.colours import PALETTES
from ..methods import METHODS
from ..models.heads import IMAGE_TASKS
from ..text.targets import space_counts
from ..version import __version__
from .desk import Desk
from .downloads import TYPES, file_name, file_of, formats
from .drawing import drawn, inside, listed_predictions, look_of
from .guard import Guard
from .offered import methods_for
from .question import question_of
from .queue import Queue
from .samples import filter_of
from .wording import on_page, with_notes_of_page

logger = logging.getLogger("lrpx")

Tell = Callable[[Mapping[str, Any]], Awaitable[None]]
Ask = Callable[[Desk, Any, Tell], Awaitable[None]]
SCRIPTS = (
    *("app", "ask", "draw", "explain", "files", "form"),
    *("maps", "predictions", "reply", "samples", "state"),
)
PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.css": ("app.css", "text/css; charset=utf-8"),
    **{f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8") for name in SCRIPTS},
}
LARGEST_BODY = 32_000_000  # bytes: a few images
FAILURES = (LrpxError, ImportError, OSError)  # what a person can mend, in one line


def build(desk: Desk, names: Collection[str] = ()) -> Starlette:
    """The application.

    Args:
        desk: What answers.
        names: Names by which this machine may be called, beside ``localhost``.
    """
    queue = Queue()
    files = resources.files(__package__) / "page"
    routes = [Route(path, partial(_file, (files / name).read_bytes(), kind)) for path, (name, kind) in PAGE.items()]
    routes.append(Route("/api/about", partial(_about, desk)))
    routes += [
        Route(f"/api/{name}", partial(_answer, desk, queue, ask), methods=["POST"]) for name, ask in ASKED.items()
    ]
    return Starlette(routes=routes, middleware=[Middleware(Guard, names=names)])


async def _file(content: bytes, kind: str, request: Request) -> Response:
    return Response(content, headers={"Content-Type": kind})


async def _about(desk: Desk, request: Request) -> Response:
    return JSONResponse(about(desk))


def about(desk: Desk) -> dict[str, Any]:
    """What the page has to know to be drawn."""
    name = os.path.basename(desk.model) if os.path.isabs(desk.model) else desk.model
    return {
        "version": __version__,
        "model": name,
        "architecture": type(desk.explainer.model).__name__,
        "task": desk.task,
        "mask": getattr(desk.explainer.tokenizer, "mask_token", None) if desk.task == "masked" else None,
        "space_counts": desk.task in ("causal", "masked") and space_counts(desk.explainer.tokenizer),
        "kinds": desk.kinds,
        "generates": desk.generates,
        "reads_images": desk.reads_images,
        "max_tokens": None if desk.task in IMAGE_TASKS else desk.most_tokens,
        "max_new_tokens": desk.limits.new_tokens,
        "methods": {m.name: f"{m.summary} {m.source}" for m in METHODS.values()},
        "cannot": {kind: methods_for(desk.explainer.model, images=kind == "images") for kind in ("text", "images")},
        "by_position": desk.by_position,
        "formats": formats(),
        "palettes": [*PALETTES],
        "benchmark": desk.samples and desk.samples.about(),
    }


async def _answer(desk: Desk, queue: Queue, ask: Ask, request: Request) -> Response:
    try:
        data = await _read(request)
    except InputError as error:
        return JSONResponse({"error": str(error)}, status_code=400)
    except ClientDisconnect:
        return Response(status_code=400)
    return Events(desk, queue, ask, data)


async def _read(request: Request) -> Any:
    """The body as JSON.

    Raises:
        InputError: It is too large, or none.
    """
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > LARGEST_BODY:
            raise InputError(f"the question is larger than {LARGEST_BODY // 1_000_000} MB. Take smaller images.")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise InputError("the question is not JSON.") from None


class Events(Response):
    """An answer as events, sent while it is computed. It is over when the client leaves."""

    def __init__(self, desk: Desk, queue: Queue, ask: Ask, data: Any) -> None:
        super().__init__(media_type="application/x-ndjson")
        self.desk, self.queue, self.ask, self.data = desk, queue, ask, data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or stop when the client has left."""
        headers = [(name, value) for name, value in self.raw_headers if name != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def tell(event: Mapping[str, Any]) -> None:
            text = json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n"
            await send({"type": "http.response.body", "body": text.encode("utf-8", "replace"), "more_body": True})

        async def leave() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave)
            try:
                await tell(await self._work(tell))
                await send({"type": "http.response.body", "body": b""})
            except OSError:  # the client has left while something was sent
                pass
            tasks.cancel_scope.cancel()

    async def _work(self, tell: Tell) -> Mapping[str, Any]:
        """Wait and answer; the last event."""

        async def wait(ahead: int) -> None:
            await tell({"event": "waiting", "ahead": ahead})

        try:
            async with self.queue.turn(wait):
                await self.ask(self.desk, self.data, tell)
        except FAILURES as error:
            return {"event": "error", "message": on_page(error)}
        except Exception as error:
            logger.exception("the app could not answer a question")
            return {"event": "error", "message": f"{type(error).__name__}: {on_page(error)}"}
        return {"event": "end"}


async def compute(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run something in a thread. It is waited for even if the client leaves: a pass through a model cannot be stopped."""
    return await anyio.to_thread.run_sync(partial(function, *arguments, **options))


# What can be asked


async def explain(desk: Desk, data: Any, tell: Tell) -> None:
    """Maps by every method of the question, and the likeliest tokens."""
    question = question_of(data)
    likeliest = await compute(desk.likeliest, question)
    if likeliest:
        await tell({"event": "predictions", **listed_predictions(likeliest)})
    found, failed = [], []
    for method in question.methods:
        await tell({"event": "working", "method": method})
        try:
            found.append(await compute(desk.explanation, question, method))
        except FAILURES as error:
            failed.append({"method": method, "message": on_page(error)})
    if found:
        if offered := likeliest or found[0].top:
            await tell({"event": "predictions", **listed_predictions(offered, found[0])})
        maps = await compute(drawn, [with_notes_of_page(e) for e in found], question.look, shared=question.shared_scale)
        truth = desk.samples.sample(question.sample).ground_truth if desk.samples and question.kind == "sample" else []
        await tell({"event": "maps", "grids": maps, "truth": truth})
    await tell({"event": "failed", "methods": failed})


async def layers_and_heads(desk: Desk, data: Any, tell: Tell) -> None:
    """Relevance of layers and heads at some tokens, by one method."""
    fields = _fields(data, "question", "positions")
    question, positions = question_of(fields["question"]), fields["positions"]
    if not isinstance(positions, list) or not all(type(i) is int for i in positions):
        raise InputError("positions is no list of whole numbers.")
    e = await compute(desk.explanation, question, question.methods[0])
    await tell({"event": "inside", **await compute(inside, e, positions, question.look)})


async def go_on(desk: Desk, data: Any, tell: Tell) -> None:
    """What the model generates after the input."""
    fields = _fields(data, "question", "count")
    if type(fields["count"]) is not int:
        raise InputError("count is no whole number.")
    found = await compute(desk.generate, question_of(fields["question"]), fields["count"])
    await tell({"event": "generated", **found})


async def reply(desk: Desk, data: Any, tell: Tell) -> None:
    """The text of what was generated before."""
    await tell({"event": "generated", **await compute(desk.reply, question_of(data))})


async def download(desk: Desk, data: Any, tell: Tell) -> None:
    """The maps of a question as a file."""
    fields = _fields(data, "question", "format")
    question, kind = question_of(fields["question"]), str(fields["format"])
    explanations = await compute(desk.explanations, question)
    look = await compute(look_of, explanations, question.look, shared=question.shared_scale)
    content = await compute(file_of, explanations, kind, look)
    data = base64.b64encode(content).decode("ascii")
    await tell({"event": "file", "name": file_name(kind), "type": TYPES[kind], "data": data})


async def browse(desk: Desk, data: Any, tell: Tell) -> None:
    """A page of the benchmark's samples."""
    if desk.samples is None:
        raise InputError("there is no benchmark. Start the app with --benchmark DIR.")
    await tell({"event": "samples", **await compute(desk.samples.find, filter_of(data))})


ASKED: dict[str, Ask] = {
    "explain": explain,
    "inside": layers_and_heads,
    "generate": go_on,
    "reply": reply,
    "download": download,
    "browse": browse,
}


def _fields(data: Any, *names: str) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or data.keys() != set(names):
        raise InputError(f"expected a JSON object with {', '.join(names)}.")
    return data
