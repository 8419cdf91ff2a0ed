"""What a kernel file's text says. Nothing of it is executed; a jailed process reads it."""
