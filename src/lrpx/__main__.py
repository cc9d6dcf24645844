"""``python -m lrpx`` is the command ``lrpx``."""

from .cli.main import main

if __name__ == "__main__":
    main()
