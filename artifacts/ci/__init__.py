"""What a CI system is told of a finished run: JUnit XML, a summary, annotations and outputs."""
