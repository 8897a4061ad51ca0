"""What the exercises of one topic share: cases, oracles, and how a result is judged."""
