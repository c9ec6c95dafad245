"""What a run would need and take, found before it starts, and what would make it fail."""
