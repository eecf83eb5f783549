"""The archive: every plain file on the volume, its grammar and its durability. Knows neither `semantic` nor `bot`."""
