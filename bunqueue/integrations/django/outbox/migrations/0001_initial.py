"""The table of the outbox."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):  # type: ignore[misc]  # Django has no types
    """Made by `makemigrations`."""

    initial = True
    dependencies: list[tuple[str, str]] = []  # noqa: RUF012  # as Django has it
    operations = [  # noqa: RUF012
        migrations.CreateModel(
            name="OutboxJob",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("job_id", models.CharField(max_length=1024)),
                ("queue", models.CharField(max_length=256)),
                ("name", models.TextField()),
                ("command", models.BinaryField()),
                ("created_at", models.DateTimeField(auto_now_add=True)),
                ("error", models.TextField(null=True)),
            ],
        ),
    ]
