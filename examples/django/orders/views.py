"""Takes orders, and tells whether their receipts were sent."""

from __future__ import annotations

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_POST

from jobq import JobNotFound
from orders.jobs import emails, send_receipt
from orders.models import Order


@require_POST
def place_order(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(email=request.POST["email"])
        job = send_receipt.sync.enqueue(order.id)  # stored only if the order is
    return JsonResponse({"order": order.id, "receipt": job.id}, status=202)


def receipt(request: HttpRequest, job: str) -> JsonResponse:
    try:
        found = emails.sync.job(job).info()
    except JobNotFound:
        return JsonResponse({"error": "no such job"}, status=404)
    return JsonResponse({"state": found.state, "sent_to": found.result})
