# The image of Airflow and of Spark in docker-compose.yaml. Both have one environment, so a handler finds the same packages
# in the driver and in the workers. Python as in requirements.lock, Java 17 from Debian, JARs by hash.
FROM python:3.11.14-slim-bookworm

RUN apt-get update \
 && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps tini \
 && rm -rf /var/lib/apt/lists/* \
 && useradd --uid 10001 --create-home ackline \
 && mkdir -p /opt/airflow /opt/ackline /opt/ackline-audit /opt/ackline-jars \
 && chown ackline: /opt/airflow /opt/ackline /opt/ackline-audit /opt/ackline-jars

ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PYTHONUNBUFFERED=1
WORKDIR /opt/ackline

# pyspark is published as source only; it is built by the setuptools of the lock, without build isolation.
COPY requirements.lock ./
RUN awk '/^[^ #]/ { on = /^setuptools==/ } on' requirements.lock > /tmp/setuptools.lock \
 && pip install --no-deps --require-hashes -r /tmp/setuptools.lock \
 && pip install --no-deps --no-build-isolation --require-hashes -r requirements.lock \
 && rm /tmp/setuptools.lock

# Airflow's metadata is in Postgres here and nowhere else, so its drivers are not in the lock (amd64, arm64).
RUN printf '%s\n' \
    'asyncpg==0.32.0 --hash=sha256:968c570c5913b7ce0995953d7239bd2367142d1af4359f87699f7a6ca75c4382 --hash=sha256:c938c4da9166ac1ef330475e314e2b94c68bde2795be0f4e8a1e00ccd806cadd' \
    'psycopg2-binary==2.9.13 --hash=sha256:930e7e58b33a4f9c39e7532d7a40147925cf3372baed4229cbebe0cf3ba9ce6b --hash=sha256:3aea95340825f5ff236e7b40f0b5602c2c77a1e95943f71fae34909834043d29' \
    > /tmp/postgres.lock \
 && pip install --no-deps --only-binary :all: --require-hashes -r /tmp/postgres.lock \
 && rm /tmp/postgres.lock

ENV PYTHONPATH=/opt/ackline/include ACKLINE_JARS=/opt/ackline-jars PYSPARK_PYTHON=/usr/local/bin/python3

COPY pyproject.toml README.md LICENSE ./
COPY include/ackline include/ackline
# The user can write no .pyc here. By their checksums they hold for the files of the later COPY, whatever their times.
RUN pip install --no-deps --no-build-isolation --editable . \
 && python -m compileall -q --invalidation-mode checked-hash include/ackline
USER ackline
RUN python -m ackline.spark.jars fetch spark
# Without the archive Spark starts as well, in twice the time.
RUN python -m ackline.spark.jvm || true

COPY include include
COPY dags dags
COPY plugins plugins
COPY spark_jobs spark_jobs

ENTRYPOINT ["tini", "--"]
