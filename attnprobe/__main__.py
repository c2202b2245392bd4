"""`python -m attnprobe` is the command line."""

from attnprobe.cli import main

main()
