"""The one exception that means: the user asked for something that cannot be done as asked."""


class UsageError(Exception):
    """A mistake in the configuration, the command line or the data files.

    The message is for the user and says what happened, why, and what to do; the command line prints it without a
    traceback and exits with status 2.
    """
