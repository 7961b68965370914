"""What an operator does to a lane, each action as a turn of its own, and what answers an operator's questions."""
