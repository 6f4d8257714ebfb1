"""The settings of a server: from flags, environment and a file. The command line shows their errors without
loading them."""


class SettingsError(ValueError):
    """An option is unknown or its value not allowed. The text is one line that can be shown as it is."""
