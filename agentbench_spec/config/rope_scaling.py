"""Settings of a window that is stretched beyond the trained one."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from agentbench_spec.config.strict_section import Section


class RopeScaling(Section):
    """Static YaRN: a longer window for the target, and with it for every drafter that shares its positions."""

    rope_type: Literal["yarn"] = "yarn"
    factor: float = Field(gt=1)
    """The window becomes factor x the original one."""
    original_max_position_embeddings: int | None = Field(default=None, ge=1)
    """Window the model was trained for; None: the one its config names (Qwen3's says 40960, its card 32768)."""
    beta_fast: float | None = None
    beta_slow: float | None = None
    attention_factor: float | None = None
