"""What answers an operator's questions: status, explain, dead records, and why a lane stands still. Changes nothing."""
