"""What every step needs of a lane: its adapters, lease, log checks, plans, claim, void, and the commit of the group."""
