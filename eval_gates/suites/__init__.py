"""The evaluation suites: where their questions come from, how they are asked, how answers score.

A suite is one module; `suite_kind.py` has what it consists of. The core and a worker in the
`evaluate` environment both import these modules: at module level they use pydantic and this
project only.

Data that is missing or malformed is an EvaluationDataError, which names the file, line and key.
"""
