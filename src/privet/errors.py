"""The errors that Privet raises on purpose.

Every message says what is wrong and what to do. The command line prints it without a traceback.
"""


class PrivetError(Exception):
    """A run cannot continue. The command line exits with 1."""

    exit_code = 1


class InputError(PrivetError, ValueError):
    """A file, value or option of the user cannot be used. The command line exits with 2."""

    exit_code = 2


class PrivetWarning(UserWarning):
    """A message for the user that does not stop a run. The command line prints it without a traceback."""
