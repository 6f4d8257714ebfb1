"""Tasks that stand elsewhere than in `tasks`: OPTIONS["modules"] names this module."""

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def mail(to):
    return f"to {to}"
