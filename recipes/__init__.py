"""What the tool can do, as data: recipes, profiles, policies, engines; nothing here runs."""
