"""`python -m leanbayes`: the command line, also where its script is not on the path."""

import sys

from leanbayes.cli import main

if __name__ == "__main__":
    sys.exit(main())
