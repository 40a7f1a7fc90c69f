"""The schedule whose last slots take the remainder."""
