from jobq import Queue

mails = Queue("mails")


@mails.task
async def mail(to: str) -> str:
    return f"mailed {to}"
