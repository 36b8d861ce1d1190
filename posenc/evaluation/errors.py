"""Reasons why a window has no number. The message of each becomes the note of the record."""

OUT_OF_MEMORY = "oom"  # a note begins so, since a record has no field for its kind


# Both are plain exceptions and not UserErrors, since nothing has to be corrected: the other cells go on.
class NotApplicableError(Exception):
    """This window cannot be measured with this protocol, this text or this encoding."""


class OutOfMemoryError(Exception):
    """One window alone does not fit into memory. The message says what it would need."""

    def __init__(self, n_tokens: int, reason: str) -> None:
        super().__init__(f"{OUT_OF_MEMORY} at {n_tokens} tokens, batch 1: {reason}")
