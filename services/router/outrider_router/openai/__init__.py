"""The OpenAI surface: requests in, answers, events and errors out, as its clients expect them."""
