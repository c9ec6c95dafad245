"""`python -m prepare`: the command line. The only file of this package that imports upwards."""

from pipeline.cli.main import main

if __name__ == "__main__":
    main()
