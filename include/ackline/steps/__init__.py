"""The three steps, plan, replay and settle, and the run that repeats them.

Each step reads state, calls one pure function, and stores the result in fenced commits. Each may be killed at any line
and run again. The DAG, the command and the tests call the same functions: `run.run` runs the steps in one process.
"""
