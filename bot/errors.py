"""What can go wrong in a conversation, and the HTTP status of every stable code, the archive's and the catalogue's included."""

from typing import ClassVar, Final


class BotError(Exception):
    """Root of the conversation's errors; `code` is the stable code of the HTTP contract."""

    code: ClassVar[str] = "internal_error"
    retry_after_s: ClassVar[int | None] = None


class BodyInvalidError(BotError):
    """A value of the request is malformed in a way that its schema can't say."""

    code = "body_invalid"


class BodyTooLargeError(BotError):
    """The request's body is over its limit."""

    code = "too_large"


class NotFoundError(BotError):
    """No such route or thing."""

    code = "not_found"


class ForbiddenError(BotError):
    """The caller may not do this."""

    code = "forbidden"


class LaneFullError(BotError):
    """Too many messages wait for an answer in this lane; nothing was written."""

    code = "lane_full"
    retry_after_s = 2


class ModelFailedError(BotError):
    """The model could not answer; the message stays in the log."""

    code = "model_error"


class TurnTimeoutError(BotError):
    """The turn took longer than `run_timeout_s`; the message stays in the log."""

    code = "turn_timeout"


class StartRefusedError(BotError):
    """The server won't start like this; the message says what to change."""

    code = "start_refused"


STATUS: Final[dict[str, int]] = {
    "forbidden": 403,
    "not_found": 404,
    "role_unknown": 404,
    "method_not_allowed": 405,
    "message_conflict": 409,
    "unsafe_object": 409,
    "not_utf8": 409,
    "context_unsupported": 409,
    "ambiguous": 409,
    "pinned": 409,
    "decision_immutable": 409,
    "index_full": 409,
    "agents_active": 409,
    "run_entry_quota": 409,
    "conflict": 409,
    "event_refused": 409,
    "run_corrupt": 409,
    "flush_missing": 409,
    "precondition_failed": 412,
    "too_large": 413,
    "body_invalid": 422,
    "channel_invalid": 422,
    "query_empty": 422,
    "ts_future": 422,
    "topic_blank": 422,
    "topic_structural": 422,
    "topic_no_slug": 422,
    "topic_reserved": 422,
    "topic_retired": 422,
    "role_invalid": 422,
    "secret_detected": 422,
    "store_busy": 423,
    "precondition_required": 428,
    "lane_full": 429,
    "internal_error": 500,
    "store_error": 500,
    "rollback_failed": 500,
    "model_error": 502,
    "degraded": 503,
    "turn_timeout": 504,
    "storage_full": 507,
}
"""HTTP status by code (contract: API.md, "Errors"). A code that is not here is a fault of ours and answers 500."""
