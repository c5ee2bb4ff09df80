"""Turns of a session: each prompt repeats the one before it, and only its new tokens are sent."""

from collections.abc import Collection
from typing import Protocol, TypeVar

from . import calls
from .calls import Call, PromptOptions
from .errors import UnknownCursor
from .hashing import token_bytes
from .models import Matches

Answer = TypeVar("Answer")


class _Send(Protocol):
    def __call__(self, call: Call[Answer], *, retries: bool = True) -> Answer: ...


class _AsyncSend(Protocol):
    async def __call__(self, call: Call[Answer], *, retries: bool = True) -> Answer: ...


class _Turns:
    """What the service is known to hold: a cursor and the tokens that it covers, as bytes."""

    def __init__(self, model_name: str, options: PromptOptions) -> None:
        self._model_name = model_name
        self._options = calls.given_options(options, PromptOptions.__optional_keys__)
        self._cursor: str | None = None
        self._covered = b""

    def call(self, prompt: bytes) -> Call[Matches]:
        """The request for a prompt: the tokens after the covered ones if it repeats these, else all of it."""
        if self._cursor is None or not prompt.startswith(self._covered):
            self.forget()
        cursor = {"after": self._cursor} if self._cursor is not None else {}
        return calls.query_bytes(self._model_name, prompt[len(self._covered) :], {**self._options, **cursor})

    def answered(self, prompt: bytes, matches: Matches) -> None:
        """Remembers the cursor of the answer."""
        if matches.cursor is not None:
            self._cursor, self._covered = matches.cursor, prompt[: 4 * matches.cursor_tokens]

    def forget(self) -> None:
        """Forgets the cursor: the next prompt is sent whole."""
        self._cursor, self._covered = None, b""

    @property
    def covered_tokens(self) -> int:
        return len(self._covered) // 4


class Conversation:
    """A session, for one thread at a time. Answers are those of `Client.query` for the whole prompt.

    Keeps four bytes for each token that a cursor covers. A cursor that the service does not know any more costs a
    second request with the whole prompt.
    """

    def __init__(self, send: _Send, model_name: str, options: PromptOptions) -> None:
        self._send = send
        self._turns = _Turns(model_name, options)

    @property
    def covered_tokens(self) -> int:
        """Tokens that the next prompt need not send if it begins with them."""
        return self._turns.covered_tokens

    def query(self, token_ids: Collection[int]) -> Matches:
        """The matches of a turn's whole prompt."""
        prompt = token_bytes(token_ids)
        try:
            matches = self._send(self._turns.call(prompt))
        except UnknownCursor:
            self._turns.forget()
            matches = self._send(self._turns.call(prompt))
        self._turns.answered(prompt, matches)
        return matches


class AsyncConversation:
    """The same for `asyncio`, for one task at a time."""

    def __init__(self, send: _AsyncSend, model_name: str, options: PromptOptions) -> None:
        self._send = send
        self._turns = _Turns(model_name, options)

    @property
    def covered_tokens(self) -> int:
        """Tokens that the next prompt need not send if it begins with them."""
        return self._turns.covered_tokens

    async def query(self, token_ids: Collection[int]) -> Matches:
        """The matches of a turn's whole prompt."""
        prompt = token_bytes(token_ids)
        try:
            matches = await self._send(self._turns.call(prompt))
        except UnknownCursor:
            self._turns.forget()
            matches = await self._send(self._turns.call(prompt))
        self._turns.answered(prompt, matches)
        return matches
