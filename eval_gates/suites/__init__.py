"""The evaluation suites: where their questions come from, how they are asked, how answers score.

The core and a worker in the `evaluate` environment both import these modules, so at module level
they use the standard library and `pipeline.core.errors` and `pipeline.core.events` only.

Data that is missing or malformed is an EvaluationDataError, which names the file, line and key.
"""
