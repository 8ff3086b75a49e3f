"""``python -m fljax``."""

from fljax.cli import main

if __name__ == "__main__":
    main()
