"""On PYTHONPATH it adds the stage `sleep_stage` as an interpreter starts."""

from pathlib import Path

import artifacts.stages
import pipeline.stages

FOLDER = Path(__file__).parent
artifacts.stages.__path__.append(str(FOLDER / "declared"))
pipeline.stages.__path__.append(str(FOLDER / "code"))
