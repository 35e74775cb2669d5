"""The subcommands of this room."""
