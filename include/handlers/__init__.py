"""Example handlers, each a module that a pipeline file names as `handlers.NAME:function`."""
