"""Operations on a running app: hand-over, promotion of a version, reset of stream time."""
