"""Foundation of every package."""
