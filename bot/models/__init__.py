"""The models that a turn can run on, by the name in settings."""

from pydantic_ai.models import Model

from bot.errors import ModelFailedError
from bot.models.recall import MODEL_NAME, recall_model


def resolve_model(name: str) -> Model:
    """The model that `settings.model` names; raises ModelFailedError for one that this version doesn't have."""
    if name == MODEL_NAME:
        return recall_model()
    raise ModelFailedError(f"settings.model is {name!r}, which is not available: set it to {MODEL_NAME!r}")
