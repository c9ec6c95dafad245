"""What would make a run fail, found from config, headers and this machine before work starts."""
