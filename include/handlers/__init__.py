"""Example handlers. A pipeline file names a function of a module here as `handlers.MODULE:FUNCTION`."""
