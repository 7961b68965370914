"""What tests and the demo run on: a real broker and a real Airflow of this machine, started and ended with care.

Nothing here is imported by the product itself, and the checker shares no code with it.
"""
