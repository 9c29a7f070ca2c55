from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    dependencies = []
    operations = [
        migrations.CreateModel(
            name="Order",
            fields=[
                ("number", models.CharField(max_length=50, primary_key=True, serialize=False)),
                ("payment", models.CharField(blank=True, max_length=100)),
                ("receipts", models.IntegerField(default=0)),
            ],
        )
    ]
