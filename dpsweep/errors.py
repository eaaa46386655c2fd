"""What is told to the user in a sentence, without a traceback."""

from __future__ import annotations


class UsageError(Exception):
    """A mistake in the configuration, the command line or the data files.

    The message is for the user and says what happened, why, and what to do; the command line prints it without a
    traceback and exits with status 2.
    """


class OutputError(Exception):
    """Records can't be written: the disk is full, or the folder isn't ours. No other task could keep its record either."""

    @classmethod
    def of(cls, folder: object, error: OSError) -> OutputError:
        """What the user is told of an error in writing to the folder."""
        return cls(
            f"{folder} can't be written ({error.strerror or error}). Make room there or choose another folder: output_dir=PATH; "
            "what is done is kept, and the same command goes on from there"
        )
