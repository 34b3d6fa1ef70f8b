"""The router: the OpenAI surface over HTTP in front, workers over gRPC behind.

Knows HTTP, text, admission and routing. Knows no tensors, no drafters and no budgets: it sends
token ids to a worker, gets token ids back and turns them into what clients expect.
"""
