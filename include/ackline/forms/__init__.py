"""What an operator gives a command, a form or a request: arguments, forms, connections, and the files of a scaffold."""
