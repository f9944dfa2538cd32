"""`python -m tandem`, as the console command `tandem`."""

import sys

from tandem.commands import main

if __name__ == "__main__":
    sys.exit(main())
