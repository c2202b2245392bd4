"""What a process that was told to stop (Ctrl-C) does so that it ends with the exit code it says, whatever else comes."""

import signal

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def hear_no_more() -> None:
    """From here on Ctrl-C changes nothing: neither a further one, nor one that was met before.

    Python ends by the signal itself, whatever exit code it is given, where a Ctrl-C once left a source that was run as text (`exec`, as dataclasses and
    named tuples are made): it notes that as not handled, and only looks at its note at the end. Running another text clears the note.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    exec("")
