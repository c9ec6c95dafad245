"""The pipeline that takes a checkpoint to a promoted variant; see docs/dev/design.md."""
