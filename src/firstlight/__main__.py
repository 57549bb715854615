"""`python -m firstlight` is the `firstlight` command."""

from firstlight.infra.cli import main

if __name__ == "__main__":
    main()
