"""Encrypted arguments and results: the store sees neither. Keys have ids and can be rotated."""

import asyncio
import os

from jobq import Queue, Unique, Worker
from jobq.encryption import Encrypted, new_key

# In an application, both come from a secrets manager.
os.environ.setdefault("SHOP_KEY", new_key())
os.environ.setdefault("SHOP_LOCK_KEY", new_key())

codec = Encrypted(
    {"2026-03": os.environ["SHOP_KEY"]},
    lock_key=os.environ["SHOP_LOCK_KEY"],
    context="shop/production",
)
payments = Queue("payments", "memory://", codec=codec)


@payments.task(unique=Unique("card"))
async def charge(card: str, cents: int) -> str:
    return f"{cents} cents from {card}"


def rotated(new: str) -> Encrypted:
    """The same codec with a new primary key. The old key still decrypts."""
    return Encrypted(
        {"2026-09": new, "2026-03": os.environ["SHOP_KEY"]},
        lock_key=os.environ["SHOP_LOCK_KEY"],
        context="shop/production",
    )


async def main() -> None:
    async with payments, Worker(payments):
        job = await charge.enqueue("4111-1111", 700)
        print(await job.result(timeout=10))

    old = codec.encode("a result of last month")
    print(rotated(new_key()).decode(old))


if __name__ == "__main__":
    asyncio.run(main())
