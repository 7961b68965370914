"""The three steps, plan, replay and settle: the only place where the adapters meet.

Each reads state, calls one pure function, and stores what it found in fenced commits; each can be killed at any line
and run again. The DAG, the command and the tests call the same functions.
"""
