"""The conversation: adapters, lanes, turns, the prompt, the agent, HTTP and the command line."""
