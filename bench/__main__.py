"""`python -m bench`: the same as `./run bench`, in an environment that is set up."""

import signal
import sys

from .command import main

if __name__ == "__main__":
    for each in (signal.SIGINT, signal.SIGTERM):  # what a shell starts in the background is deaf to the first
        signal.signal(each, signal.default_int_handler)
    sys.exit(main())
