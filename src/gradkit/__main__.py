"""``python -m gradkit``: the command line without its script."""

import sys

from gradkit.cli import main

sys.exit(main())
