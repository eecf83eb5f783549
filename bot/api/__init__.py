"""The HTTP surface `/v1`: parsing and answering. What happens in between is the business of lanes, turns and stores."""
