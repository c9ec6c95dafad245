"""What the tool can do, as data: recipes, serving profiles and policies; nothing here runs."""
