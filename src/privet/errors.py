"""The errors that Privet raises on purpose.

Every message names the thing that is wrong and the way out; the command line prints it without a traceback.
"""


class PrivetError(Exception):
    """A run cannot go on. The command line exits with 1."""

    exit_code = 1


class InputError(PrivetError, ValueError):
    """What the user gave cannot be used: a bad file, value or option. The command line exits with 2."""

    exit_code = 2


class PrivetWarning(UserWarning):
    """Something that the user should know, and that does not stop a run. The command line prints it without a traceback."""
