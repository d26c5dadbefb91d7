"""The URLs of the site in run_django.py."""

from django.contrib.auth.views import LoginView
from django.http import JsonResponse
from django.urls import include, path
from oauth2_provider.views.generic import ProtectedResourceView


class API(ProtectedResourceView):
    def get(self, request):
        return JsonResponse({})


urlpatterns = [
    path("api", API.as_view()),
    path("accounts/login/", LoginView.as_view()),
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
]
