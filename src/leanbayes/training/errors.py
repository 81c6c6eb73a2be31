"""What `fit` raises when it cannot go on: one sentence each, with what to do."""


class OutputError(OSError):
    """The output folder or a file in it cannot be written or read."""


class FolderInUse(OutputError):
    """Another process writes to the output folder."""


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C: training was cut short, and can be resumed."""
