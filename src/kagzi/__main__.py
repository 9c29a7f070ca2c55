"""`python -m kagzi` is `kagzi`."""

from kagzi.cli.main import main

if __name__ == "__main__":
    main()
