"""nbgitpuller's routes, behind a question: a link fetches nothing before its reader has agreed.

| route | does |
|---|---|
| ``GET git-pull?repo=…`` | asks, with a button, or says why no link may do this |
| ``POST git-pull?repo=…`` | nbgitpuller's own page, and a cookie with a token for this very link |
| ``GET git-pull/api`` | takes the token, once, and fetches what was agreed to |

Jupyter Server loads extensions in the order of their names, so these routes come before those of
``nbgitpuller``.  Import only where that is installed.
"""

import asyncio
import os
import secrets
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from jupyter_server.utils import url_path_join
from nbgitpuller.handlers import SyncHandler, UIHandler
from tornado import web
from tornado.iostream import StreamClosedError

from miglab_jupyterlab.git_pull import (
    GitLink,
    LinkRefused,
    git_environment,
    pull_command,
    read_link,
)

COOKIE = "miglab-git-link"
OPEN_LINKS = 16  # agreed to and not fetched yet; the oldest goes
NO_FRAME = (
    "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'"
)
AGREE_AGAIN = "Open the link again and press the button: each press fetches the files once."
PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Fetch files?</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 40em; margin: 3em auto; padding: 0 1em; }}
code {{ overflow-wrap: anywhere; }}
button {{ font: inherit; padding: .5em 1em; margin-right: 1em; }}
</style>
</head>
<body>
<h1>Fetch files?</h1>
<p>The link that you opened brings files from <code>{repo}</code>{branch}
into the folder <code>{folder}</code> of your home.</p>
<p>Go on only if you know where the link comes from. A notebook can do whatever you can do, as soon
as you run it.</p>
<form method="post" action="{action}">
<input type="hidden" name="_xsrf" value="{xsrf}">
<button type="submit">Fetch the files</button>
<a href="{base_url}">Go on without them</a>
</form>
</body>
</html>
"""


class AgreedLinks:
    """The links that somebody has agreed to, each by a token that counts once."""

    def __init__(self) -> None:
        self._links: dict[str, GitLink] = {}

    def add(self, link: GitLink) -> str:
        """Return a token for one fetch of this link."""
        token = secrets.token_urlsafe(32)
        self._links[token] = link
        for old in list(self._links)[:-OPEN_LINKS]:
            del self._links[old]
        return token

    def take(self, token: str) -> GitLink | None:
        """Return the link of this token, and invalidate the token."""
        return self._links.pop(token, None)


class AskHandler(UIHandler):
    """``git-pull``: asks first, then shows nbgitpuller's page."""

    def initialize(self, agreed: AgreedLinks, allowed: Sequence[str], root: Path) -> None:
        self.agreed = agreed
        self.allowed = allowed
        self.root = root

    @web.authenticated
    async def get(self) -> None:
        """Show the question, which no other page can put into a frame."""
        link = self._link()
        self.set_header("Content-Security-Policy", NO_FRAME)
        fields = {
            "repo": link.repo,
            "branch": f" (branch {link.branch})" if link.branch else "",
            "folder": link.path,
            "action": self.request.uri,
            "xsrf": self.xsrf_token.decode(),
            "base_url": self.base_url,
        }
        self.finish(PAGE.format_map({name: escape(text) for name, text in fields.items()}))

    @web.authenticated
    async def post(self) -> None:
        """The reader agrees; Jupyter Server has checked the page's XSRF token."""
        self.set_cookie(
            COOKIE,
            self.agreed.add(self._link()),
            path=url_path_join(self.base_url, "git-pull/api"),
            httponly=True,
            samesite="Strict",
            secure=self.request.protocol == "https",
        )
        await super().get()

    def _link(self) -> GitLink:
        try:
            return read_link(partial(self.get_query_argument, default=""), self.allowed, self.root)
        except LinkRefused as refusal:
            raise web.HTTPError(403, str(refusal)) from refusal


class FetchHandler(SyncHandler):
    """``git-pull/api``: fetches what was agreed to, as server-sent events."""

    def initialize(self, agreed: AgreedLinks) -> None:
        self.agreed = agreed

    @web.authenticated
    async def get(self) -> None:
        """One fetch at a time."""
        link = self.agreed.take(self.get_cookie(COOKIE, ""))
        if link is None:
            raise web.HTTPError(403, AGREE_AGAIN)
        self.set_header("Content-Type", "text/event-stream")
        self.set_header("Cache-Control", "no-cache")
        async with self.git_lock:
            await self._fetch(link)

    async def _fetch(self, link: GitLink) -> None:
        process = await asyncio.create_subprocess_exec(
            *pull_command(link), env=git_environment(link.repo), stdout=asyncio.subprocess.PIPE
        )
        assert process.stdout is not None  # a pipe was asked for
        async for line in process.stdout:
            self.write(b"data: " + line + b"\n")
            try:
                await self.flush()
            except StreamClosedError:  # the tab was closed: the files come all the same
                continue
        await process.wait()


def git_routes(home: Path) -> list[tuple[str, type, dict[str, Any]]]:
    """The handlers, below the server's base URL.

    Args:
        home: the server's root folder.
    """
    agreed = AgreedLinks()
    allowed = os.environ.get("MIGLAB_GIT_LINKS", "").split()
    root = home.expanduser() / os.environ.get("NBGITPULLER_PARENTPATH", "")
    asking = {"agreed": agreed, "allowed": allowed, "root": root}
    return [
        ("git-pull", AskHandler, asking),
        ("git-pull/api", FetchHandler, {"agreed": agreed}),
    ]
