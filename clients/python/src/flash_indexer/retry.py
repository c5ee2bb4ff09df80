"""When a call is tried again, and how long one attempt may take. Without I/O."""

import random
import time
from collections.abc import Iterable, Iterator

from .errors import DeadlineExceeded

_FIRST_PAUSE_S = 0.02
_PAUSE_MAX_S = 1.0
_TIMEOUT_MIN_S = 0.001
_REFUSED_FOR_NOW = (429, 503)


class Attempts:
    """The attempts of one call: at most `attempts_max`, all within `deadline_s` seconds."""

    def __init__(self, deadline_s: float, attempts_max: int) -> None:
        self.deadline_s = deadline_s
        self._end = time.monotonic() + deadline_s
        self._left = max(attempts_max, 1)
        self._pause_s = _FIRST_PAUSE_S

    def begin(self) -> float:
        """Starts an attempt, and returns the seconds that it may take. Raises `DeadlineExceeded` if none are left."""
        self._check()
        self._left -= 1
        return self.left_s()

    def left_s(self) -> float:
        """Seconds until the deadline, as a timeout: at least a millisecond, as 0 has another meaning."""
        return max(self._end - time.monotonic(), _TIMEOUT_MIN_S)

    def until_deadline(self, parts: Iterable[bytes]) -> Iterator[bytes]:
        """The parts of an answer. Raises `DeadlineExceeded` if one arrives after the deadline."""
        for part in parts:
            self._check()
            yield part

    def pause_before_next(self, retry_after: str | None = None) -> float | None:
        """Seconds to wait before the next attempt; none if there is no further one before the deadline."""
        pause = self._pause_s * random.uniform(0.5, 1.0)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        if retry_after is not None and retry_after.isdecimal():
            pause = max(pause, float(retry_after))
        return pause if self._left > 0 and time.monotonic() + pause < self._end else None

    def _check(self) -> None:
        if time.monotonic() >= self._end:
            raise DeadlineExceeded(
                f"no answer within {self.deadline_s} s; raise deadline_s or ask /ready for the cause"
            )


def is_refused_for_now(status: int) -> bool:
    """Whether the same request may succeed a little later."""
    return status in _REFUSED_FOR_NOW
