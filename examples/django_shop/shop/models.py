from django.db import models


class Order(models.Model):
    number = models.CharField(max_length=50, primary_key=True)
    payment = models.CharField(max_length=100, blank=True)
    receipts = models.IntegerField(default=0)
