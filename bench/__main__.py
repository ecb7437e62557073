"""`python -m bench`: the same as `./run bench`, in an environment that is set up."""

import sys

from .command import main

if __name__ == "__main__":
    sys.exit(main())
