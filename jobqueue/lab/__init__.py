"""The laboratory around the queue: a database to break, time to move, workers to kill, pictures of it all."""
