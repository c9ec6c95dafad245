"""What runs inside the managed environments.

A worker is a module with `run(spec, progress, output)`: plain data that its stage wrote, what
receives its progress, and a separate folder to write into. It returns facts for the stage's
record; an expected failure is a PrepareError.
"""
