"""Where `serve` listens, and what one client may ask of it."""

from __future__ import annotations

from pydantic import Field

from agentbench_spec.config.strict_section import Section

OWN_NAMES = ("127.0.0.1", "::1", "localhost")
"""Addresses that no other machine can reach."""


class BridgeConfig(Section):
    """Settings of `agentbench-spec serve` that no row depends on."""

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65_535)
    """0: any free one."""
    in_flight: int = Field(default=16, ge=1)
    """Requests that are decoded or wait; one more is refused."""
    body_bytes: int = Field(default=8 << 20, ge=1)
    """Of one request."""
    body_s: float = Field(default=30.0, gt=0)
    """Seconds in which it must be there."""
    sessions: int = Field(default=256, ge=1)
    """Sessions that may go on; of more, the one that was silent longest is closed."""

    @property
    def open_to_others(self) -> bool:
        """True if other machines can reach the address."""
        return self.host not in OWN_NAMES
