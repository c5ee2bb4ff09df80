"""What a call raises."""


class FlashIndexerError(Exception):
    """Base of all errors of this package."""


class InvalidToken(FlashIndexerError, ValueError):
    """The token cannot be sent: it is empty or has a character that a header cannot have."""


class ConnectionFailed(FlashIndexerError):
    """The service could not be reached, or closed the connection, in every attempt before the deadline."""


class DeadlineExceeded(FlashIndexerError):
    """No attempt was answered before the deadline of the call."""


class UnexpectedAnswer(FlashIndexerError):
    """A success whose body is no answer of the endpoint. The URL is probably that of another service."""


class DumpCutOff(FlashIndexerError):
    """The dump ended without its last line. What was read is incomplete."""


class ApiError(FlashIndexerError):
    """The service refused the request. `status` is the HTTP status, and the text says what to do."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


class UnknownCursor(ApiError):
    """No engine of the service holds the prefix of the cursor. The caller sends the whole prompt."""
