"""So that ``python -m leanbayes.cli`` works too."""

import sys

from leanbayes.cli import main

sys.exit(main())
