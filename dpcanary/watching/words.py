"""What texts on watched trainings call things."""

# Whoever attacks, from the strongest to the weakest.
THREAT_MODELS = {
    "all_updates_known": "sees all updates, knows the other records",
    "all_updates": "sees all updates",
    "last_model": "sees the first and the last model",
}
