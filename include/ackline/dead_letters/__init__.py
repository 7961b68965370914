"""Dead letters: sent and confirmed before a record is `dead`."""
