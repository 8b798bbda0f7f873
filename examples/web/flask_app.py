"""A Flask application, without asyncio: the same calls behind `.sync`.

gunicorn flask_app:app --worker-class gthread --threads 8
jq-worker --app flask_app:mail
"""

from flask import Flask, Response, request

from jobq import JobqError, Queue, current_job
from jobq.http import error_reply, sync_job_events, sync_job_reply

mail = Queue("mail")
app = Flask(__name__)


@mail.task
def send(to: str, copies: int = 1) -> str:
    job = current_job().sync
    for n in range(copies):
        job.log(f"copy {n + 1} to {to}")
        job.progress(n + 1)
    return f"sent to {to}"


@app.errorhandler(JobqError)
def jobq_error(error: JobqError) -> Response:
    return Response(*error_reply(error))


@app.post("/mails")
def create() -> Response:
    job = send.sync.enqueue(request.form["to"], copies=int(request.form.get("copies", 1)))
    return Response(*sync_job_reply(job, location=f"/mails/{job.id}"))


@app.get("/mails/<id>")
def show(id: str) -> Response:
    return Response(*sync_job_reply(mail.sync.job(id), timeout=10))


@app.get("/mails/<id>/events")
def events(id: str) -> Response:
    return Response(sync_job_events(mail.sync.job(id)), mimetype="text/event-stream")
