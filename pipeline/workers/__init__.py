"""Code that runs inside the managed environments.

A worker is a module with `run(spec, progress, output)`: plain data from its stage, a receiver of
progress, and a folder to write into. It returns facts for the stage's record; an expected failure
is a PrepareError.
"""
