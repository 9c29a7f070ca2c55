from django.urls import path

from shop.views import order

urlpatterns = [path("orders/<str:number>", order)]
