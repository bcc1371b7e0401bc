"""The exception tree: one root, few leaves, each message one line that says what to do."""


class FlamecheError(Exception):
    """Anything flameche refuses or fails at; `exit_code` is what the command line returns."""

    exit_code = 1


class BadInput(FlamecheError):
    """The caller gave something that cannot be used: a config, a file, an option."""

    exit_code = 2


class ConfigError(BadInput):
    """An experiment description is wrong: unknown key, value out of range, contradiction."""


class DataError(BadInput):
    """A dataset is missing, damaged, or does not hold what was asked of it.

    `public` says what is wrong without a file's name or a value of the data, for who must not see these.
    """

    def __init__(self, message: str, *, public: str = "") -> None:
        super().__init__(message)
        self.public = public


class StoreError(BadInput):
    """A results folder cannot be read or written, or does not hold what it should."""


class RunBusy(StoreError):
    """A run's folder is being written by another process."""


class TrainingError(FlamecheError):
    """Local training broke off: a process of its own died or failed."""


class SealError(FlamecheError):
    """A sealed vector does not fit: another scheme, another length, damaged bytes."""

    client: int | None = None  # whose message it was, where that is known


class Cancelled(SealError):
    """Ciphertexts cancelled each other: their sum would no longer be sealed, so it is not formed."""


class OverflowBudget(SealError):
    """A value, or a sum of as many terms as promised, would not fit; refused before sealing."""

    exit_code = 2


class OutOfRange(OverflowBudget):
    """A value exceeds the declared bound; whoever knows what the value is adds what to do."""
