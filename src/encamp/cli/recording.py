"""`encamp site record`: everything triggers can see, in a file."""

from __future__ import annotations


def record() -> None:
    """Print everything that triggers can see of the site now, as JSON.

    'encamp trigger test --site FILE' tries triggers out on it, anywhere and without acting.

    Example: encamp site record > monday.json
    """
    from encamp.cli.asking import asked_one
    from encamp.cli.cleaning import json_text
    from encamp.door.questions import AskRecording, Recording

    print(json_text(asked_one(AskRecording(), Recording)))
