"""Evaluation suites: one module each, with questions, task and scores (see `suite_kind.py`).

Missing or malformed data is an EvaluationDataError, which names the file, line and key.
"""
