"""docker-compose.yaml, its Dockerfile and .env.example name only what exists, and no password has a default."""

import importlib.util
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE_TEXT = (ROOT / "docker-compose.yaml").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
LOCK = (ROOT / "requirements.lock").read_text()
HOME = "/opt/ackline"
"""The folder of the project in the image."""


def package(name: str) -> Path:
    """Returns the folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def environments() -> Iterator[tuple[str, str, str]]:
    """Yields (service, name, value) of each variable that a service sets."""
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            yield name, variable, str(value)


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yields each command of the Dockerfile and of the services of its image, as words; a script line by line."""
    own = [(name, s["command"]) for name, s in SERVICES.items() if s["image"].startswith("ackline:")]
    own += [
        (name, s["healthcheck"]["test"][1:])
        for name, s in SERVICES.items()
        if s["image"].startswith("ackline:") and "healthcheck" in s
    ]
    for name, command in own:
        if command[:2] == ["bash", "-euc"]:
            for line in command[2].replace("\\\n", " ").splitlines():
                yield name, line.split()
        else:
            yield name, command
    for step in re.findall(r"^RUN (.*)$", DOCKERFILE, re.MULTILINE):
        for part in step.split("&&"):
            yield "Dockerfile", part.split()


def pipelines() -> list[dict[str, Any]]:
    return [yaml.safe_load(file.read_text()) for file in sorted((ROOT / "include/pipelines").glob("*.yaml"))]


def test_the_services_are_a_broker_airflow_with_postgres_and_spark() -> None:
    airflow = {f"airflow-{name}" for name in ("init", "api-server", "scheduler", "dag-processor", "triggerer")}
    assert set(SERVICES) == {"kafka", "topics", "postgres", "spark-master", "spark-worker", *airflow}
    for name, service in SERVICES.items():
        for needed, how in service.get("depends_on", {}).items():
            assert needed in SERVICES, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[needed]


def test_every_published_port_is_on_loopback() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == 3
    for port in ports:
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    assert not any(key in service for service in SERVICES.values() for key in ("network_mode", "privileged"))


def test_every_image_has_a_version_and_ours_are_those_of_the_project() -> None:
    images = {service["image"] for service in SERVICES.values()} | set(
        re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    )
    for image in images:
        assert re.fullmatch(r"[\w./-]+:\d+\.\d+[\w.-]*", image), image
    version = re.search(r'^version = "(.*)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    broker = re.search(r"org\.apache\.kafka:kafka_2\.13:(\S+)", (ROOT / "include/ackline/spark/jars.lock").read_text())
    assert version is not None
    assert broker is not None
    assert {f"ackline:{version[1]}", f"apache/kafka:{broker[1]}"} <= images


def test_no_password_is_written_down_and_none_has_a_default() -> None:
    secret = re.compile(r"PASSWORD$|SECRET|FERNET|_KEY$|TOKEN")
    given = [(variable, value) for _, variable, value in environments() if secret.search(variable)]
    assert len(given) > 5
    for variable, value in given:
        assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), variable
    for _, variable, value in environments():
        for login in re.findall(r"://([^/@]*)@", value):
            assert re.fullmatch(r"airflow:\$\{\w+:\?[^}]+\}", login), variable
    assert re.findall(r"\$\{\w+(?!\w|:\?)", COMPOSE_TEXT) == []


def test_the_example_environment_names_exactly_the_variables_and_leaves_them_empty() -> None:
    lines = [line for line in (ROOT / ".env.example").read_text().splitlines() if line and line[0] != "#"]
    example = dict(line.split("=", 1) for line in lines)
    assert set(example) == set(re.findall(r"(?<!\$)\$\{(\w+)", COMPOSE_TEXT))
    assert set(example.values()) == {""}
    assert "/.env" in (ROOT / ".gitignore").read_text().splitlines()


def test_every_path_of_the_project_exists() -> None:
    volumes = [volume for service in SERVICES.values() for volume in service.get("volumes", [])]
    for source, target, *_ in (volume.split(":") for volume in volumes):
        if not source.startswith("."):
            assert source in COMPOSE["volumes"]
            continue
        assert (ROOT / source).is_dir(), source
        assert target == f"{HOME}/{source.removeprefix('./')}"
    copied = [words.split()[:-1] for words in re.findall(r"^COPY (.*)$", DOCKERFILE, re.MULTILINE)]
    kept = (ROOT / ".dockerignore").read_text()
    for source in (source for sources in copied for source in sources):
        assert (ROOT / source).exists(), source
        assert f"!{source.split('/')[0]}\n" in kept
    for path in re.findall(rf"{HOME}/([\w./-]+)", COMPOSE_TEXT + DOCKERFILE):
        assert (ROOT / path).exists(), path


def test_every_other_folder_is_created_in_the_image_so_that_its_volume_is_writable() -> None:
    made = re.search(r"mkdir -p ([^&]*)", DOCKERFILE)
    assert made is not None
    for path in set(re.findall(r"(/opt/[\w-]+)", COMPOSE_TEXT + DOCKERFILE)) - {"/opt/kafka"}:
        assert path in made[1].split(), path


def test_every_module_and_program_that_a_command_names_exists() -> None:
    system = {"apt-get", "rm", "useradd", "mkdir", "chown", "awk", "printf", "umask"}
    programs = Path(sys.executable).parent
    for where, words in commands():
        program = words[0]
        assert program in system or (programs / program).exists(), f"{where}: {program}"
        if "-m" in words:
            assert importlib.util.find_spec(words[words.index("-m") + 1]), f"{where}: {' '.join(words)}"


def test_every_airflow_command_and_setting_is_one_of_this_airflow() -> None:
    known = (package("airflow") / "cli/cli_config.py").read_text()
    job_types = "".join(file.read_text() for file in (package("airflow") / "jobs").glob("*.py"))
    for where, words in commands():
        for word in words[1:] if words[0] == "airflow" else ():
            exists = f'"{word}"' in known if word.startswith("--") else f'name="{word}"' in known
            assert exists or f'job_type = "{word}"' in job_types, f"{where}: {' '.join(words)}"
    settings = yaml.safe_load((package("airflow") / "config_templates/config.yml").read_text())
    for _, variable, _ in environments():
        if variable.startswith("AIRFLOW__"):
            section, option = variable.removeprefix("AIRFLOW__").lower().split("__")
            assert option in settings[section]["options"], variable


def test_driver_master_and_worker_share_spark_s_secret() -> None:
    """Kafka's password travels in the tasks, so the driver refuses a cluster without authentication."""
    defaults = spark_defaults()
    assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", defaults.pop("spark.authenticate.secret"))
    for name in ("airflow-scheduler", "spark-master", "spark-worker"):
        folder = SERVICES[name]["environment"]["SPARK_CONF_DIR"]
        assert SERVICES[name]["configs"] == [{"source": "spark-defaults", "target": f"{folder}/spark-defaults.conf"}]
    assert (defaults["spark.authenticate"], defaults["spark.network.crypto.enabled"]) == ("true", "true")


def spark_defaults() -> dict[str, str]:
    lines = COMPOSE["configs"]["spark-defaults"]["content"].splitlines()
    return dict(line.split(maxsplit=1) for line in lines if not line.startswith("#"))


def test_no_application_takes_all_cores_of_the_worker() -> None:
    """The second of two pipelines that run at once would wait for the first."""
    worker = SERVICES["spark-worker"]["command"]
    assert 2 * int(spark_defaults()["spark.cores.max"]) <= int(worker[worker.index("--cores") + 1])


def test_one_service_builds_the_image_and_the_others_take_it_from_nowhere_else() -> None:
    ours = {name: service for name, service in SERVICES.items() if service["image"].startswith("ackline:")}
    assert [name for name, service in SERVICES.items() if "build" in service] == ["airflow-init"]
    assert {name: service["pull_policy"] for name, service in ours.items()} == {
        name: "build" if name == "airflow-init" else "never" for name in ours
    }


def test_each_service_that_stays_up_has_a_health_check() -> None:
    once = {"topics", "airflow-init"}
    assert {name for name, service in SERVICES.items() if "healthcheck" not in service} == once
    for name, service in SERVICES.items():
        assert (service.get("restart", "no") == "no") == (name in once), name
        for needed, how in service.get("depends_on", {}).items():
            awaited = "service_completed_successfully" if needed in once else "service_healthy"
            assert how["condition"] == awaited, f"{name} needs {needed}"


def test_what_is_for_a_demonstration_alone_is_marked() -> None:
    lines = COMPOSE_TEXT.splitlines()
    for part in ("SIMPLE_AUTH_MANAGER_USERS", "AIRFLOW_CONN_KAFKA_DEFAULT", "  kafka:", "  postgres:"):
        at = next(number for number, line in enumerate(lines) if part in line)
        assert "DEMO ONLY" in "".join(lines[at - 2 : at]), part


def test_the_spark_daemons_are_classes_of_this_pyspark() -> None:
    jar = next((package("pyspark") / "jars").glob("spark-core_*.jar"))
    classes = {word for _, words in commands() for word in words if word.startswith("org.apache.spark.")}
    assert len(classes) == 2
    with zipfile.ZipFile(jar) as content:
        assert {name.replace(".", "/") + ".class" for name in classes} <= set(content.namelist())


def test_every_variable_of_ours_is_read_by_the_project() -> None:
    sources = "".join(
        file.read_text() for folder in ("include", "dags", "plugins") for file in (ROOT / folder).rglob("*.py")
    )
    ours = {variable for _, variable, _ in environments() if variable.startswith("ACKLINE_")}
    ours |= set(re.findall(r"(ACKLINE_\w+)=", DOCKERFILE))
    assert ours == {"ACKLINE_AUDIT", "ACKLINE_JARS", "ACKLINE_PIPELINES"}
    for variable in ours:
        assert variable in sources, variable


def test_the_connections_are_those_of_the_pipelines_and_of_the_stack() -> None:
    scheduler = SERVICES["airflow-scheduler"]["environment"]
    for pipeline in pipelines():
        kafka = json.loads(scheduler[f"AIRFLOW_CONN_{pipeline['kafka']['connection'].upper()}"])
        host, _, port = kafka["extra"]["bootstrap.servers"].partition(":")
        assert kafka["conn_type"] == host == "kafka"
        assert f"://{host}:{port}" in SERVICES[host]["environment"]["KAFKA_ADVERTISED_LISTENERS"]
    spark = json.loads(scheduler["AIRFLOW_CONN_SPARK_DEFAULT"])
    assert (spark["conn_type"], spark["host"]) == ("spark", "spark://spark-master:7077")
    assert spark["host"] in SERVICES["spark-worker"]["command"]


def test_the_topics_of_the_pipelines_are_created() -> None:
    made = re.search(r"for topic in (.*);", SERVICES["topics"]["command"][2])
    assert made is not None
    for pipeline in pipelines():
        assert {*pipeline["kafka"]["topics"], pipeline["dead_letter"]["topic"]} <= set(made[1].split())


@pytest.mark.parametrize("service", ["airflow-api-server", "airflow-scheduler", "spark-worker"])
def test_all_services_that_use_the_tables_have_them_on_the_same_volume(service: str) -> None:
    audit = SERVICES["airflow-scheduler"]["environment"]["ACKLINE_AUDIT"]
    assert f"audit:{audit}" in SERVICES[service]["volumes"]


def test_what_the_image_installs_is_pinned_by_hash() -> None:
    installs = [words for where, words in commands() if where == "Dockerfile" and words[:2] == ["pip", "install"]]
    assert len(installs) == 4
    for words in installs:
        assert "--require-hashes" in words or "--editable" in words
    assert re.search(r"^setuptools==", LOCK, re.MULTILINE)


def test_the_image_has_the_compiled_package_and_the_archive_of_classes() -> None:
    """Nothing makes them later: each process would compile the package, and each Spark would parse its classes."""
    steps = re.findall(r"^(USER|COPY|RUN) (.*)$", DOCKERFILE, re.MULTILINE)
    compiled = next(i for i, (_, step) in enumerate(steps) if "compileall" in step)
    assert ("COPY", "include/ackline include/ackline") in steps[:compiled]
    assert "USER" not in {kind for kind, _ in steps[:compiled]}, "only root may write there"
    assert "--invalidation-mode checked-hash include/ackline" in " ".join(steps[compiled][1].split())
    fetched = steps.index(("RUN", "python -m ackline.spark.jars fetch spark"))
    assert steps.index(("USER", "ackline")) < fetched < steps.index(("RUN", "python -m ackline.spark.jvm || true"))
