"""Decisions at the turns of your own sessions: reading, asking, parts and gates."""
