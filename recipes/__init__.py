"""Configuration models and data: recipes, profiles, policies, engines."""
