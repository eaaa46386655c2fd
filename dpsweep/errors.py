"""The one exception that means: the user asked for something that cannot be done as asked."""


class UsageError(Exception):
    """A mistake in the configuration, the command line or the data files.

    The message is for the user and says what happened, why, and what to do; the command line prints it without a
    traceback and exits with status 2.
    """


class OutputError(Exception):
    """Records can't be written: the disk is full, or the folder isn't ours. No other task could keep its record either."""

    def __init__(self, folder: object, error: OSError) -> None:
        super().__init__(
            f"{folder} can't be written ({error.strerror or error}). Make room there or choose another folder: output_dir=PATH; "
            "what is done is kept, and the same command goes on from there"
        )
