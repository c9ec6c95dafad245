"""What a CI system receives of a finished run: JUnit XML, a summary, annotations and outputs."""
