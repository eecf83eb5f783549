"""The catalogue: scanning, chunking, embedding, indexing and searching. Knows neither `persistence` nor `bot`."""
