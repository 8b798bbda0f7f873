"""Jobs and rows in one transaction: a Session of SQLAlchemy 2 with the psycopg driver."""

from __future__ import annotations

import os

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import jobq

URL = os.environ["DATABASE_URL"]
engine = create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
billing = jobq.Queue("billing_orm", URL)


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orm_orders"
    id: Mapped[int] = mapped_column(primary_key=True)


@billing.task
def send_receipt(order: int) -> None:
    print(f"receipt for order {order}")


Base.metadata.create_all(engine)
with Session(engine) as session, jobq.transaction(session):
    session.add(Order(id=1))
    send_receipt.sync.enqueue(1)
    session.commit()
    session.add(Order(id=2))
    send_receipt.sync.enqueue(2)
    session.rollback()

print(billing.sync.counts()[jobq.State.WAITING], "job waits")
engine.dispose()
