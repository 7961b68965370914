"""Records in flight: answers from outside, read from the ack topic, and what settle decides by them."""
