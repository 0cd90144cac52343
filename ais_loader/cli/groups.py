"""Groups of commands that suggest the probably intended command for an unknown one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import click

from ais_loader.name_matching import did_you_mean


class HintingGroup(click.Group):
    """A group whose error for an unknown command suggests a synonym known from other tools, or the nearest name."""

    synonyms: ClassVar[Mapping[str, str]] = {
        "add": "create",
        "delete": "rm",
        "del": "rm",
        "list": "ls",
        "make": "create",
        "new": "create",
        "remove": "rm",
    }

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            known = self.list_commands(ctx)
            meant = self.synonyms.get(args[0])
            is_known = meant is not None and meant.partition(" ")[0] in known
            hint = f"; did you mean {meant!r}?" if is_known else did_you_mean(args[0], known)
            ctx.fail(f"no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)
