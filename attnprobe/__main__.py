"""`python -m attnprobe`, and the console script, are the command line: the little that can be said before `cli` is imported."""

import sys


def run() -> None:
    """Run the command line; a Ctrl-C while it is still being imported ends quietly."""
    try:
        from attnprobe.cli import main

        main()
    except KeyboardInterrupt:
        from attnprobe.leaving import INTERRUPTED, hear_no_more

        hear_no_more()
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    run()
