"""What a run will need before it starts: memory, disk and time, and the settings that follow."""
