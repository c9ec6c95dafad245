"""On PYTHONPATH it adds the stage `sleep_stage` as an interpreter starts."""

from pathlib import Path

import pipeline.stages

pipeline.stages.__path__.append(str(Path(__file__).parent / "stages"))
