"""What ends the command with one clear line instead of a traceback."""


class CommandError(Exception):
    """Something the caller can put right; the message says what. Exit code 2."""


class StackError(Exception):
    """The services could not be started or kept alive. Exit code 1."""
