"""The options of jobs and schedules, checked before anything is sent."""
