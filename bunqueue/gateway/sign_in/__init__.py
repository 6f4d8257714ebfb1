"""How people sign in to the dashboard, and who has."""
