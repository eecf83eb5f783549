"""The only reader of the environment: `RECALLD_*` variables and their defaults. Settings of the bot itself are a file."""

import ipaddress
import os
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from bot.errors import StartRefusedError

# Nothing below may phone home or fetch a model; the libraries read these when they are imported.
QUIET: Final = {
    "ORT_DISABLE_TELEMETRY": "1",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


class Config(BaseSettings):
    """How this process runs. Each field can be set as `RECALLD_<NAME>`, and most as an option of the command line."""

    model_config = SettingsConfigDict(env_prefix="RECALLD_", extra="ignore", frozen=True)

    workspace: Path = Path("workspace")
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    index_uri: str = ""
    embedder: str = "bundled"
    sweep_s: Annotated[float, Field(gt=0, le=3600)] = 5.0
    lane_limit: Annotated[int, Field(ge=1, le=10_000)] = 200
    model: str = ""
    log_format: Literal["console", "json"] = "console"

    @property
    def setting_overrides(self) -> dict[str, str]:
        """The settings that the environment fixes, by their key in settings.json."""
        return {"model": self.model} if self.model else {}

    def index_location(self, workspace_root: Path) -> str:
        """Where the index lives: as configured, else in the workspace."""
        return self.index_uri or str(workspace_root / ".recalld" / "index")


def load_config(**overrides: object) -> Config:
    """Read the environment; `overrides` (None means absent) come from the command line and win.

    Raises StartRefusedError that names every bad variable.
    """
    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Config(**given)  # type: ignore[arg-type]  # pydantic checks the values
    except ValidationError as err:
        problems = "; ".join(f"RECALLD_{str(e['loc'][0]).upper()}: {e['msg']}" for e in err.errors())
        raise StartRefusedError(f"the configuration is wrong: {problems}") from err


def quiet_libraries() -> None:
    """Turn off telemetry and downloads, in this process and in those it starts."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)  # noqa: TID251 - this is the one reader of the environment


def check_bind(host: str) -> None:
    """Without keys the server answers anyone who reaches it, so it binds to loopback only; raises StartRefusedError."""
    if host == "localhost":
        return
    try:
        loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        loopback = False
    if not loopback:
        raise StartRefusedError(
            f"--host {host!r} is not a loopback address and no keys are configured: anyone who reaches the port could read "
            "all memory. Use --host 127.0.0.1",
        )
