"""The schedule whose first slots take the remainder."""
