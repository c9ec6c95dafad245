"""What differences between a candidate's and its baseline's answers allow one to say."""
